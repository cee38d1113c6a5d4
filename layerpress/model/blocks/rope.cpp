#include "layerpress/model/blocks/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace layerpress::model {
namespace {

constexpr const char* kRopeParameters = "config.json: rope parameters";

/// The rope parameters of a config, from either place, and the values that every kind needs.
struct RopeSource {
  Json parameters = Json::object();
  std::string kind = "default";
  double theta = 10000;
  std::int64_t dims = 0;  ///< rotated features per head
  std::int64_t max_positions = 0;
  std::int64_t original_positions = 0;

  double number(const char* key) const { return json_get<double>(parameters, key, kRopeParameters); }
  double number_or(const char* key, double otherwise) const {
    return json_get_or<double>(parameters, key, kRopeParameters, otherwise);
  }
  /// `factor`, or the ratio of the context length to the original length.
  double factor() const {
    return number_or("factor", static_cast<double>(max_positions) / static_cast<double>(original_positions));
  }
  double exponent(std::int64_t pair) const { return 2.0 * static_cast<double>(pair) / static_cast<double>(dims); }
};

/// transformers takes `rope_scaling` in place of all of `rope_parameters`.
void check_replaced_theta(const Json& config, double theta) {
  const auto found = config.find("rope_parameters");
  if (found == config.end() || !found->is_object()) return;
  const double other = json_get_or<double>(*found, "rope_theta", kRopeParameters, theta);
  if (other != theta)
    throw CheckpointError(
        "[model.rope] config.json: rope_scaling replaces rope_parameters, so that rope_theta is {:g} and not {:g}; "
        "move what rope_scaling says into rope_parameters",
        theta, other);
}

RopeSource read_source(const Json& config, const DecoderConfig& decoder, bool rotates_part) {
  RopeSource source;
  source.parameters = rope_parameters(config);
  source.kind =
      json_get_or<std::string>(source.parameters, "rope_type", kRopeParameters,
                               json_get_or<std::string>(source.parameters, "type", kRopeParameters, "default"));
  source.theta =
      source.number_or("rope_theta", json_get_or<double>(config, "rope_theta", kRopeParameters, decoder.rope_theta));
  const double partial = source.number_or("partial_rotary_factor",
                                          json_get_or<double>(config, "partial_rotary_factor", kRopeParameters, 1.0));
  check_replaced_theta(config, source.theta);
  if (!(source.theta > 1) || !(partial > 0) || partial > 1)
    throw CheckpointError("[model.rope] config.json: rope_theta {} or partial_rotary_factor {} is out of range",
                          source.theta, partial);
  if (partial != 1 && !rotates_part)
    throw CheckpointError(
        "[model.rope] config.json: transformers ignores partial_rotary_factor {} in this model, and other engines do "
        "not; remove it, or compute as transformers does with --model-graph export",
        partial);
  source.dims = static_cast<std::int64_t>(static_cast<double>(decoder.head_dim) * partial);
  if (source.dims < 4 || source.dims % 2 != 0)
    throw CheckpointError("[model.rope] config.json: {} rotated features of a head; expected an even number above 3",
                          source.dims);
  source.max_positions = decoder.max_position_embeddings;
  source.original_positions =
      json_get_or<std::int64_t>(config, "original_max_position_embeddings", kRopeParameters,
                                json_get_or<std::int64_t>(source.parameters, "original_max_position_embeddings",
                                                          kRopeParameters, source.max_positions));
  if (source.original_positions < 1)
    throw CheckpointError("[model.rope] config.json: original_max_position_embeddings {} is not positive",
                          source.original_positions);
  return source;
}

std::vector<double> plain_frequencies(const RopeSource& source) {
  std::vector<double> frequencies(static_cast<std::size_t>(source.dims / 2));
  for (std::int64_t i = 0; i < source.dims / 2; ++i) frequencies[i] = std::pow(source.theta, -source.exponent(i));
  return frequencies;
}

/// Llama 3.1: long wavelengths are stretched by `factor`, short ones are unchanged, and those between are blended.
void apply_llama3(const RopeSource& source, graph::RopeTable& table) {
  const double factor = source.number("factor"), low = source.number("low_freq_factor"),
               high = source.number("high_freq_factor");
  const auto original = static_cast<double>(source.original_positions);
  for (double& frequency : table.inverse_frequencies) {
    const double wavelength = 2 * std::numbers::pi / frequency;
    if (wavelength > original / low) {
      frequency /= factor;
    } else if (wavelength >= original / high) {
      const double smooth = (original / wavelength - low) / (high - low);
      frequency = (1 - smooth) * frequency / factor + smooth * frequency;
    }
  }
}

double yarn_magnitude(double scale, double mscale) { return scale <= 1 ? 1.0 : 0.1 * mscale * std::log(scale) + 1.0; }

/// YaRN (arXiv 2309.00071): interpolation for slow dimensions, extrapolation for fast ones, a linear ramp between.
void apply_yarn(const RopeSource& source, graph::RopeTable& table) {
  const double factor = source.factor();
  const double mscale = source.number_or("mscale", 0), mscale_all = source.number_or("mscale_all_dim", 0);
  const double inferred = mscale != 0 && mscale_all != 0
                              ? yarn_magnitude(factor, mscale) / yarn_magnitude(factor, mscale_all)
                              : yarn_magnitude(factor, 1);
  table.attention_scaling = source.number_or("attention_factor", inferred);
  const double beta_fast = source.number_or("beta_fast", 32), beta_slow = source.number_or("beta_slow", 1);
  const auto dims = static_cast<double>(source.dims);
  const auto correction = [&](double rotations) {
    return dims * std::log(static_cast<double>(source.original_positions) / (rotations * 2 * std::numbers::pi)) /
           (2 * std::log(source.theta));
  };
  double low = correction(beta_fast == 0 ? 32 : beta_fast), high = correction(beta_slow == 0 ? 1 : beta_slow);
  if (json_get_or<bool>(source.parameters, "truncate", kRopeParameters, true)) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dims - 1);
  if (low == high) high += 0.001;
  for (std::size_t i = 0; i < table.inverse_frequencies.size(); ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    const double frequency = table.inverse_frequencies[i];
    table.inverse_frequencies[i] = frequency / factor * ramp + frequency * (1 - ramp);
  }
}

std::vector<double> divided(const std::vector<double>& frequencies, const RopeSource& source, const char* key) {
  const auto factors = json_get<std::vector<double>>(source.parameters, key, kRopeParameters);
  if (factors.size() != frequencies.size())
    throw CheckpointError("[model.rope] config.json: '{}' has {} entries, expected {}", key, factors.size(),
                          frequencies.size());
  std::vector<double> result = frequencies;
  for (std::size_t i = 0; i < result.size(); ++i) result[i] /= factors[i];
  return result;
}

void apply_longrope(const RopeSource& source, graph::RopeTable& table) {
  const double factor = source.factor();
  const double inferred =
      factor <= 1 ? 1.0 : std::sqrt(1 + std::log(factor) / std::log(static_cast<double>(source.original_positions)));
  table.attention_scaling = source.number_or("attention_factor", inferred);
  table.original_length = source.original_positions;
  table.long_inverse_frequencies = divided(table.inverse_frequencies, source, "long_factor");
  table.inverse_frequencies = divided(table.inverse_frequencies, source, "short_factor");
}

/// What follows from factors that are zero, negative or too large.
void require_angles(const RopeSource& source, const graph::RopeTable& table) {
  const auto usable = [](double value) { return value > 0 && std::isfinite(value); };
  const auto all_usable = [&](const std::vector<double>& values) {
    return std::all_of(values.begin(), values.end(), usable);
  };
  if (!usable(table.attention_scaling) || (source.kind == "dynamic" && !usable(table.ntk_factor)) ||
      !all_usable(table.inverse_frequencies) || !all_usable(table.long_inverse_frequencies))
    throw CheckpointError("[model.rope] config.json: the numbers of rope type '{}' are out of range: {}", source.kind,
                          source.parameters.dump().substr(0, 200));
}

}  // namespace

Json rope_parameters(const Json& config) {
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const auto found = config.find(key);
    if (found == config.end() || found->is_null()) continue;
    if (!found->is_object()) throw CheckpointError("[model.rope] config.json: '{}' is not an object", key);
    if (!found->empty()) return *found;
  }
  return Json::object();
}

graph::RopeTable parse_rope(const Json& config, const DecoderConfig& decoder, bool rotates_part) {
  const RopeSource source = read_source(config, decoder, rotates_part);
  graph::RopeTable table;
  table.theta = source.theta;
  table.inverse_frequencies = plain_frequencies(source);
  if (source.kind == "linear") {
    for (double& frequency : table.inverse_frequencies) frequency /= source.number("factor");
  } else if (source.kind == "dynamic") {
    table.original_length = source.max_positions;
    table.ntk_factor = source.number("factor");
  } else if (source.kind == "llama3") {
    apply_llama3(source, table);
  } else if (source.kind == "yarn") {
    apply_yarn(source, table);
  } else if (source.kind == "longrope") {
    apply_longrope(source, table);
  } else if (source.kind != "default") {
    throw CheckpointError(
        "[model.rope] config.json: rope type '{}' is not supported (default, linear, dynamic, yarn, llama3, longrope "
        "are)",
        source.kind);
  }
  require_angles(source, table);
  return table;
}

}  // namespace layerpress::model
