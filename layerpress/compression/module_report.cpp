#include <cmath>

#include "layerpress/compression/modifier.h"

namespace layerpress::compression {

std::optional<double> ModuleReport::relative_output_error() const {
  if (!output_error || !output_power || !(*output_power > 0)) return std::nullopt;
  return std::sqrt(*output_error / *output_power);
}

void ModuleReport::add_figures(const std::vector<double>& more) {
  if (more.size() != figures.size())
    throw InternalError("[compression.report] {}: {} figures do not add to {}", module, more.size(), figures.size());
  for (std::size_t i = 0; i < figures.size(); ++i) figures[i] += more[i];
}

Json ModuleReport::to_json() const {
  Json json = {{"module", module},
               {"scheme", scheme},
               {"weight_error", weight_error},
               {"tokens", tokens},
               {"fallback", fallback.empty() ? Json() : Json(fallback)},
               {"output_error", output_error ? Json(*output_error) : Json()}};
  if (output_power) json["output_power"] = *output_power;
  if (const auto relative = relative_output_error()) json["relative_output_error"] = *relative;
  if (routed_tokens) json["routed_tokens"] = *routed_tokens;
  if (!figures.empty()) json["figures"] = figures;
  return json;
}

ModuleReport ModuleReport::from_json(const Json& json) {
  const std::string where = "journal";
  ModuleReport report;
  report.module = json_get<std::string>(json, "module", where);
  report.scheme = json_get<std::string>(json, "scheme", where);
  report.weight_error = json_get_or<double>(json, "weight_error", where, 0);
  report.tokens = json_get<std::int64_t>(json, "tokens", where);
  report.fallback = json_get_or<std::string>(json, "fallback", where, "");
  if (json.contains("output_error") && json["output_error"].is_number())
    report.output_error = json["output_error"].get<double>();
  if (json.contains("output_power") && json["output_power"].is_number())
    report.output_power = json["output_power"].get<double>();
  if (json.contains("figures")) report.figures = json_get<std::vector<double>>(json, "figures", where);
  if (json.contains("routed_tokens")) report.routed_tokens = json_get<std::int64_t>(json, "routed_tokens", where);
  return report;
}

}  // namespace layerpress::compression
