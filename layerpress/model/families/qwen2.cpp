// Qwen 2 and 2.5: biases on q, k, v; an optional sliding window in the upper layers.
#include <algorithm>

#include "layerpress/model/blocks/decoder_blocks.h"
#include "layerpress/model/families/families.h"

namespace layerpress::model {

std::vector<std::int64_t> qwen_windows(const Json& config, std::int64_t num_layers) {
  const bool on = json_get_or<bool>(config, "use_sliding_window", "config.json", false);
  const auto window = on ? json_get_or<std::int64_t>(config, "sliding_window", "config.json", 4096) : 0;
  const auto first_layer = json_get_or<std::int64_t>(config, "max_window_layers", "config.json", 28);
  return layer_windows(config, num_layers, window, std::max<std::int64_t>(first_layer, 0));
}

TracedModel trace_qwen2(const Json& config) {
  const DecoderConfig decoder = parse_decoder_config(config, {.num_kv_heads = 32, .max_position_embeddings = 32768});
  const std::vector<std::int64_t> windows = qwen_windows(config, decoder.num_layers);
  return causal_language_model("Qwen2", decoder, config, [&](auto& tracer, std::int64_t layer, graph::Symbol x) {
    const SelfAttention attention{.class_name = "Qwen2Attention", .qkv_bias = true, .window = windows[layer]};
    return pre_norm_layer(tracer, decoder, "Qwen2", attention, false, x);
  });
}

}  // namespace layerpress::model
