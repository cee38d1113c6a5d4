#include "layerpress/run/results/reproduction.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "layerpress/base/json.h"
#include "layerpress/base/text.h"
#include "layerpress/setup/run_identity.h"

namespace layerpress::run {
namespace {

using Values = std::vector<std::pair<std::string, Json>>;

/// Options that are written even where they have their default, because they describe the run.
bool is_always_written(std::string_view name, const OneshotOptions& options) {
  if (name == "scheme") return options.recipe.empty();
  return !options.dataset.empty() && (name == "num-calibration-samples" || name == "max-seq-length" || name == "seed");
}

/// The options that make the output what it is, in their usual order.
Values values_of(const OneshotOptions& options) {
  std::vector<Json> defaults;
  const OneshotOptions unchanged;
  OneshotOptions::visit(unchanged, [&](const char*, const auto& value, const char*) { defaults.push_back(value); });
  Values values;
  std::size_t place = 0;
  OneshotOptions::visit(options, [&](const char* name, const auto& value, const char*) {
    const Json& usual = defaults[place++];
    if (!setup::describes_output(name) || std::string_view(name) == "imatrix") return;
    if (Json(value) == usual && !is_always_written(name, options)) return;
    values.emplace_back(name, value);
    if (std::string_view(name) == "from-imatrix")  // folders of this machine are nobody's business
      values.back().second = std::filesystem::path(options.from_imatrix).filename().string();
  });
  return values;
}

std::string shell_value(const Json& value) {
  if (value.is_string()) return shell_word(value.get<std::string>());
  if (value.is_array()) return shell_word(join(value.get<std::vector<std::string>>(), ","));
  return value.dump();
}

std::string command(const Values& values, const std::string& model, const std::string& data) {
  std::string text = "layerpress oneshot " + shell_word(model) + " --output OUT";
  if (!data.empty()) text += " --dataset " + shell_word(data);
  for (const auto& [name, value] : values) {
    if (value.is_boolean())
      text += fmt::format(" --{}{}", value.get<bool>() ? "" : "no-", name);
    else
      text += fmt::format(" --{} {}", name, shell_value(value));
  }
  return text;
}

std::string python_call(const Values& values, const std::string& data) {
  std::string text = "layerpress.oneshot(model, output_dir=\"OUT\"";
  if (!data.empty()) text += ", dataset=" + (data == "DATA" ? data : Json(data).dump());
  for (auto [name, value] : values) {
    std::replace(name.begin(), name.end(), '-', '_');
    text += fmt::format(", {}={}", name,
                        value.is_boolean() ? std::string(value.get<bool>() ? "True" : "False") : value.dump());
  }
  return text + ")";
}

}  // namespace

std::string public_dataset(const std::string& dataset) {
  std::error_code failure;
  const bool is_path = !dataset.empty() && std::string_view("/.~").find(dataset.front()) != std::string_view::npos;
  return is_path || std::filesystem::exists(dataset, failure) ? "" : dataset;
}

std::string reproduction(const OneshotOptions& options, const ModelName& model, int ranks) {
  Values values = values_of(options);
  if (!options.recipe.empty()) values.emplace(values.begin(), "recipe", "recipe.yaml");
  std::string data = public_dataset(options.dataset);
  if (data.empty() && !options.dataset.empty()) data = "DATA";
  if (options.model_in_memory) return python_call(values, data);
  const std::string start = ranks > 1 ? fmt::format("torchrun --no-python --nproc-per-node {} ", ranks) : "";
  return start + command(values, model.shown, data);
}

}  // namespace layerpress::run
