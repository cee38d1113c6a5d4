#include "layerpress/model/blocks/decoder_config.h"

#include <cmath>
#include <map>

#include "layerpress/model/blocks/architecture.h"

namespace layerpress::model {
namespace {

std::int64_t checked(std::int64_t value, const char* key, std::int64_t limit) {
  if (value <= 0 || value > limit)
    throw CheckpointError("[model.config] config.json: '{}' is {}, expected 1 to {}", key, value, limit);
  return value;
}

std::int64_t head_dim_of(const Json& config, const DecoderConfig& parsed, std::int64_t otherwise) {
  std::int64_t size = otherwise > 0 ? otherwise : parsed.hidden_size / parsed.num_heads;
  if (json_has(config, "head_dim")) size = positive_number(config, "head_dim", 65'536);
  if (size <= 0 || size % 2 != 0)
    throw CheckpointError("[model.config] config.json: head_dim {} is not a positive even number", size);
  return size;
}

std::string activation_function(const Json& config, const DecoderDefaults& defaults) {
  static const std::map<std::string, std::string> kKnown = {{"silu", "silu"},
                                                            {"swish", "silu"},
                                                            {"gelu", "gelu"},
                                                            {"gelu_new", "gelu_tanh"},
                                                            {"gelu_pytorch_tanh", "gelu_tanh"}};
  const auto name = json_get_or<std::string>(config, defaults.activation_key, kConfigFile, defaults.activation);
  const auto known = kKnown.find(name);
  if (known == kKnown.end())
    throw UnknownVariantError(
        "[model.config] config.json: {} '{}' is not supported (silu, gelu, gelu_pytorch_tanh are)",
        defaults.activation_key, name);
  return known->second;
}

/// Of the config, or of its quantization_config, where compressed-tensors has it.
std::vector<std::int64_t> layer_experts(const Json& config, std::int64_t num_layers) {
  const Json quantization = json_get_or<Json>(config, "quantization_config", kConfigFile, Json::object());
  const Json& owner = json_has(config, kExpertCountsKey) ? config : quantization;
  if (!json_has(owner, kExpertCountsKey)) return {};
  const Json& given = owner[kExpertCountsKey];
  const std::string where = fmt::format("{}: {}", kConfigFile, kExpertCountsKey);
  if (const auto method = json_get<std::string>(given, "method", where); method != "prune")
    throw CheckpointError("[model.config] {}: method '{}' is not supported; only 'prune' is", where, method);
  const auto numbers = json_get<std::vector<Json>>(given, "num_experts", where);
  if (static_cast<std::int64_t>(numbers.size()) != num_layers)
    throw CheckpointError("[model.config] {}: num_experts has {} entries for {} layers", where, numbers.size(),
                          num_layers);
  std::vector<std::int64_t> counts;
  for (const Json& number : numbers) {
    if (!number.is_null() && !number.is_number_integer())
      throw CheckpointError("[model.config] {}: num_experts has {}, which is no number", where, number.dump());
    counts.push_back(number.is_null() ? 0 : checked(json_integer(number), "num_experts", kMostExperts));
  }
  return counts;
}

}  // namespace

std::int64_t positive_number(const Json& config, const char* key, std::int64_t limit) {
  return checked(json_get<std::int64_t>(config, key, kConfigFile), key, limit);
}

std::int64_t positive_number(const Json& config, const char* key, std::int64_t limit, std::int64_t otherwise) {
  return checked(json_get_or<std::int64_t>(config, key, kConfigFile, otherwise), key, limit);
}

bool has_layer_experts(const Json& config) {
  const auto has = [&](const char* section) {
    return json_has(config, section) && config[section].is_object() && json_has(config[section], kExpertCountsKey);
  };
  return json_has(config, kExpertCountsKey) || has("text_config") || has("quantization_config");
}

DecoderConfig parse_decoder_config(const Json& config, const DecoderDefaults& defaults) {
  DecoderConfig parsed;
  parsed.hidden_size = positive_number(config, "hidden_size", kMostFeatures);
  parsed.intermediate_size = positive_number(config, "intermediate_size", kMostFeatures);
  parsed.num_layers = positive_number(config, "num_hidden_layers", 10'000);
  parsed.num_heads = positive_number(config, "num_attention_heads", 65'536);
  parsed.num_kv_heads = positive_number(config, "num_key_value_heads", 65'536,
                                        defaults.num_kv_heads > 0 ? defaults.num_kv_heads : parsed.num_heads);
  parsed.vocab_size = positive_number(config, "vocab_size", std::int64_t{1} << 31);
  parsed.max_position_embeddings =
      positive_number(config, "max_position_embeddings", std::int64_t{1} << 40, defaults.max_position_embeddings);
  parsed.rms_norm_eps = json_get_or<double>(config, defaults.epsilon_key, kConfigFile, defaults.epsilon);
  if (!(parsed.rms_norm_eps >= 0) || !std::isfinite(parsed.rms_norm_eps))
    throw CheckpointError("[model.config] config.json: {} {} is out of range", defaults.epsilon_key,
                          parsed.rms_norm_eps);
  parsed.norm = defaults.norm;
  parsed.rope_theta = defaults.rope_theta;
  parsed.hidden_act = activation_function(config, defaults);
  parsed.tie_word_embeddings =
      json_get_or<bool>(config, "tie_word_embeddings", kConfigFile, defaults.tie_word_embeddings);
  if (parsed.num_heads % parsed.num_kv_heads != 0)
    throw CheckpointError("[model.config] config.json: {} attention heads are not a multiple of {} key/value heads",
                          parsed.num_heads, parsed.num_kv_heads);
  parsed.head_dim = head_dim_of(config, parsed, defaults.head_dim);
  parsed.layer_experts = layer_experts(config, parsed.num_layers);
  return parsed;
}

std::vector<std::int64_t> layer_windows(const Json& config, std::int64_t num_layers, std::int64_t window,
                                        std::int64_t first_layer) {
  std::vector<std::int64_t> windows;
  for (const bool slides : sliding_layers(config, num_layers, [&](std::int64_t layer) { return layer >= first_layer; }))
    windows.push_back(slides ? window : 0);
  return windows;
}

std::vector<bool> sliding_layers(const Json& config, std::int64_t num_layers,
                                 const std::function<bool(std::int64_t)>& otherwise) {
  std::vector<bool> sliding(static_cast<std::size_t>(num_layers), false);
  if (!json_has(config, "layer_types")) {
    for (std::int64_t layer = 0; layer < num_layers; ++layer) sliding[layer] = otherwise(layer);
    return sliding;
  }
  const auto names = json_get<std::vector<std::string>>(config, "layer_types", kConfigFile);
  if (static_cast<std::int64_t>(names.size()) != num_layers)
    throw CheckpointError("[model.config] config.json: layer_types has {} entries for {} layers", names.size(),
                          num_layers);
  for (std::int64_t layer = 0; layer < num_layers; ++layer) {
    sliding[layer] = names[layer] == "sliding_attention";
    if (!sliding[layer] && names[layer] != "full_attention")
      throw CheckpointError("[model.config] config.json: layer type '{}' is not supported", names[layer]);
  }
  return sliding;
}

std::int64_t window_size(const Json& config) {
  constexpr const char* kKey = "sliding_window";
  const auto window = json_get_or<std::int64_t>(config, kKey, kConfigFile, config.contains(kKey) ? 0 : 4096);
  if (window < 0) throw CheckpointError("[model.config] config.json: {} {} is negative", kKey, window);
  return window;
}

double soft_cap(const Json& config, const char* key, double otherwise) {
  const auto cap = json_get_or<double>(config, key, kConfigFile, config.contains(key) ? 0 : otherwise);
  if (!(cap >= 0) || !std::isfinite(cap))
    throw CheckpointError("[model.config] config.json: {} {} is out of range", key, cap);
  return cap;
}

}  // namespace layerpress::model
