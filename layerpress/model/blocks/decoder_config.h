#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "layerpress/base/json.h"

namespace layerpress::model {

inline constexpr const char* kConfigFile = "config.json";  ///< named in messages
/// What compressed-tensors calls the numbers of experts where layers have different ones: {"method": "prune", "num_experts": [null, 8,
/// ...]}, null for a layer without experts.
inline constexpr const char* kExpertCountsKey = "moe_sparsity_config";

/// The kind of norm that a family uses.
enum class NormKind {
  kRms,             ///< RMS; the normalized value is rounded before the weight is applied
  kRmsRoundedOnce,  ///< RMS; everything in fp32, rounded once at the end
  kRmsOffset,       ///< like kRmsRoundedOnce, with 1 + weight
  kLayer,           ///< layer norm (subtracts the mean), without bias
};

/// The fields of config.json that decoder-only language models share. Sizes are checked to be positive and plausible.
struct DecoderConfig {
  std::int64_t hidden_size = 0;
  std::int64_t intermediate_size = 0;
  std::int64_t num_layers = 0;
  std::int64_t num_heads = 0;
  std::int64_t num_kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t vocab_size = 0;
  std::int64_t max_position_embeddings = 0;
  double rms_norm_eps = 1e-6;
  NormKind norm = NormKind::kRms;
  std::string hidden_act = "silu";  ///< a GatedActivation function
  bool tie_word_embeddings = false;
  double rope_theta = 10000;  ///< default if the config has none
  std::vector<std::int64_t>
      layer_experts{};  ///< of kExpertCountsKey, 0 for null; empty: all layers with experts have equally many
};

/// The values that a model class assumes for keys missing in config.json (transformers' defaults of that class).
struct DecoderDefaults {
  std::int64_t num_kv_heads = 0;  ///< 0: num_heads
  std::int64_t head_dim = 0;      ///< 0: hidden_size / heads
  std::int64_t max_position_embeddings = 2048;
  bool tie_word_embeddings = false;
  NormKind norm = NormKind::kRms;
  const char* epsilon_key = "rms_norm_eps";
  double epsilon = 1e-6;
  const char* activation_key = "hidden_act";
  const char* activation = "silu";
  double rope_theta = 10000;
};

/// Upper limit for every number of features; no real model is wider.
constexpr std::int64_t kMostFeatures = 1 << 24;
/// The same for the experts of a layer.
constexpr std::int64_t kMostExperts = 65'536;

/// An integer of config.json from 1 to `limit`; throws CheckpointError naming the key.
std::int64_t positive_number(const Json& config, const char* key, std::int64_t limit);
/// The same, but uses `otherwise`, which is checked as well, if the key is missing or null.
std::int64_t positive_number(const Json& config, const char* key, std::int64_t limit, std::int64_t otherwise);

/// Whether layers have different numbers of experts (kExpertCountsKey), which no engine loads.
bool has_layer_experts(const Json& config);

/// Reads and checks the shared fields; throws CheckpointError naming the key.
DecoderConfig parse_decoder_config(const Json& config, const DecoderDefaults& defaults);

/// The sliding window of each layer (0: full attention): from `layer_types` if given, otherwise `window` for the layers
/// from `first_layer` on.
std::vector<std::int64_t> layer_windows(const Json& config, std::int64_t num_layers, std::int64_t window,
                                        std::int64_t first_layer);

/// The layers with sliding attention: from `layer_types` if given, otherwise as `otherwise(layer)` says.
std::vector<bool> sliding_layers(const Json& config, std::int64_t num_layers,
                                 const std::function<bool(std::int64_t)>& otherwise);

/// Tokens of the sliding window: 4096 if the key is missing, 0 (none) if it is null.
std::int64_t window_size(const Json& config);

/// The bound of scores or logits: `otherwise` if the key is missing, 0 (none) if it is null.
double soft_cap(const Json& config, const char* key, double otherwise);

}  // namespace layerpress::model
