#include "layerpress/gguf/architectures/rope_facts.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

namespace layerpress::gguf {
namespace {

constexpr const char* kLlama3Factors = "rope_freqs.weight";

Json list_of(const std::vector<float>& values) {
  FileFacts facts{.architecture = "made", .metadata = {{"made.values", values}}};
  return facts.value("values");
}

/// A line through points.
struct Line {
  double slope = 0, offset = 0;
};

/// The least squares line through two points or more.
Line line_through(const std::vector<std::pair<double, double>>& points) {
  double x = 0, y = 0, xx = 0, xy = 0;
  const auto count = static_cast<double>(points.size());
  for (const auto& [px, py] : points) x += px, y += py;
  for (const auto& [px, py] : points)
    xx += (px - x / count) * (px - x / count), xy += (px - x / count) * (py - y / count);
  const double slope = xy / xx;
  return {slope, y / count - slope * x / count};
}

/// Llama 3's scaling from its factors of frequencies: the share of a frequency that is not stretched grows with it on a line, which
/// leaves one of three numbers free.
Json llama3_scaling(const std::vector<float>& divisors, double theta) {
  const double factor = *std::max_element(divisors.begin(), divisors.end());
  std::vector<std::pair<double, double>> points;
  for (std::size_t i = 0; i < divisors.size(); ++i) {
    const double exponent = static_cast<double>(i) / static_cast<double>(divisors.size());
    const double share = (1 / static_cast<double>(divisors[i]) - 1 / factor) / (1 - 1 / factor);
    if (share > 1e-3 && share < 1 - 1e-3)
      points.emplace_back(1 / (2 * std::numbers::pi * std::pow(theta, exponent)), share);
  }
  Json scaling = {{"rope_type", "llama3"}, {"factor", std::round(factor * 1000) / 1000}, {"low_freq_factor", 1.0}};
  scaling["high_freq_factor"] = 4.0;
  scaling["original_max_position_embeddings"] = 8192;
  if (points.empty()) return scaling;
  if (points.size() == 1) {  // of the lines through it the one with the usual width
    scaling["original_max_position_embeddings"] = std::llround((3 * points[0].second + 1) / points[0].first);
    return scaling;
  }
  const Line line = line_through(points);
  const double width = -1 / line.offset;  // of the ramp, high_freq_factor - low_freq_factor
  const double original = line.slope * width;
  if (!(width > 0.01 && width < 1e6 && original >= 1 && original < 1e9)) return scaling;
  scaling["high_freq_factor"] = std::round((1 + width) * 100) / 100;
  scaling["original_max_position_embeddings"] = std::llround(original);
  return scaling;
}

Json longrope_scaling(const FileFacts& file) {
  Json scaling = {{"rope_type", "longrope"},
                  {"type", "longrope"},
                  {"long_factor", list_of(file.values("rope_factors_long.weight"))},
                  {"short_factor", list_of(file.values("rope_factors_short.weight"))}};
  if (const Json magnitude = file.value("rope.scaling.attn_factor"); !magnitude.is_null())
    scaling["attention_factor"] = magnitude;
  return scaling;
}

double yarn_magnitude(double factor, double mscale) {
  return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

/// Of linear and yarn scaling.
Json keyed_scaling(const FileFacts& file, const std::string& kind) {
  Json scaling = {{"rope_type", kind}, {"factor", 1.0}};  // llama.cpp's if the file has none
  for (const auto& [to, from] : {std::pair{"factor", "factor"},
                                 {"original_max_position_embeddings", "original_context_length"},
                                 {"beta_fast", "yarn_beta_fast"},
                                 {"beta_slow", "yarn_beta_slow"}})
    if (const Json value = file.value(std::string("rope.scaling.") + from); !value.is_null()) scaling[to] = value;
  if (const Json value = file.value("rope.scaling.attn_factor"); kind == "yarn" && value.is_number())
    scaling["attention_factor"] =
        value.get<double>() * usual_yarn_magnitude(json_get<double>(scaling, "factor", "GGUF"));
  // The key of DeepSeek's models, which scale scores by the same factor that they scale queries and keys by.
  if (const Json value = file.value("rope.scaling.yarn_log_multiplier"); value.is_number())
    scaling["mscale"] = scaling["mscale_all_dim"] = std::round(value.get<double>() * 1e7) / 1e6;
  return scaling;
}

}  // namespace

double usual_yarn_magnitude(double factor) { return yarn_magnitude(factor, 1); }

double yarn_magnitude(const RopeConfig& rope) {
  if (rope.has("attention_factor")) return rope.number("attention_factor", 1);
  const double factor = rope.number("factor", 1), mscale = rope.number("mscale", 0),
               all = rope.number("mscale_all_dim", 0);
  if (mscale == 0 || all == 0) return usual_yarn_magnitude(factor);
  return yarn_magnitude(factor, mscale) / yarn_magnitude(factor, all);
}

void state_rope(ModelConfig& config, std::uint32_t head_dim, const RopeDefaults& otherwise) {
  if (config.file() == nullptr) return;
  const FileFacts& file = *config.file();
  const Json theta = file.value("rope.freq_base");
  config.state("rope_theta", theta.is_null() ? Json(10000.0) : theta);
  if (const Json local = file.value("rope.freq_base_swa"); !local.is_null())
    config.state("rope_local_base_freq", local);
  const Json rotated = file.value("rope.dimension_count");
  const double part = rotated.is_number() ? rotated.get<double>() / head_dim : 0;
  if (part > 0 && (part < 1 || (part == 1 && otherwise.rotated_part < 1))) config.state("partial_rotary_factor", part);
  const Json kind = file.value("rope.scaling.type");
  if (file.has_tensor(kLlama3Factors)) {
    const std::vector<float> divisors = file.values(kLlama3Factors);
    if (divisors.size() != head_dim / 2)
      throw CheckpointError("[gguf.config] {} has {} values, expected {}", kLlama3Factors, divisors.size(),
                            head_dim / 2);
    config.state("rope_scaling", llama3_scaling(divisors, config.number("rope_theta", 10000)));
  } else if (file.has_tensor("rope_factors_long.weight")) {
    config.state("rope_scaling", longrope_scaling(file));
  } else if (kind.is_string() && kind != "none") {
    if (kind != "linear" && kind != "yarn")
      throw CheckpointError(
          "[gguf.config] rope.scaling.type is {}; it must be none, linear or yarn, or longrope with the tensors "
          "rope_factors_long.weight and rope_factors_short.weight",
          shortened(kind));
    config.state("rope_scaling", keyed_scaling(file, kind.get<std::string>()));
  }
  if (!otherwise.by_layers && !otherwise.by_axes) return;
  const Json stated = config.number("rope_theta", 10000);
  Json full = config.object("rope_scaling");
  if (!full.contains("rope_type")) full["rope_type"] = "default";
  full["rope_theta"] = stated;
  if (otherwise.by_axes) {
    Json sections = file.value("rope.dimension_sections");  // llama.cpp has a fourth axis, which has none
    if (sections.is_array() && sections.size() == 4) sections.erase(3);
    full["mrope_section"] = std::move(sections);
    full["mrope_interleaved"] = true;
    full["partial_rotary_factor"] = part > 0 ? part : otherwise.rotated_part;
    config.state("rope_parameters", std::move(full));
  } else {
    config.state("rope_parameters", {{"full_attention", std::move(full)},
                                     {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", stated}}}});
  }
  config.forget("rope_theta");
  config.forget("rope_scaling");
}

}  // namespace layerpress::gguf
