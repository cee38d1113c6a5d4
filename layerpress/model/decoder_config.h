#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "layerpress/base/json.h"

namespace layerpress::model {

/// The fields of config.json that decoder-only language models share. Sizes are checked to be positive and sane.
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
  std::string hidden_act = "silu";  ///< a GatedActivation function
  bool tie_word_embeddings = false;
};

/// What a model class assumes for keys that its config.json leaves out (transformers' defaults of that class).
struct DecoderDefaults {
  std::int64_t num_kv_heads = 0;  ///< 0: as many as heads
  std::int64_t head_dim = 0;      ///< 0: hidden_size / heads
  std::int64_t max_position_embeddings = 2048;
  bool tie_word_embeddings = false;
};

/// Reads and checks the shared fields; throws CheckpointError naming the key.
DecoderConfig parse_decoder_config(const Json& config, const DecoderDefaults& defaults);

/// The sliding window of each layer (0: full attention), from `layer_types` where given, else `window` for the layers
/// from `first_layer` on.
std::vector<std::int64_t> layer_windows(const Json& config, std::int64_t num_layers, std::int64_t window,
                                        std::int64_t first_layer);

}  // namespace layerpress::model
