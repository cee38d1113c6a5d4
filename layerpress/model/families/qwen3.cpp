// Qwen 3: RMS norms on every head of q and k.
#include "layerpress/model/blocks/decoder_blocks.h"
#include "layerpress/model/families/families.h"

namespace layerpress::model {

TracedModel trace_qwen3(const Json& config) {
  const DecoderConfig decoder =
      parse_decoder_config(config, {.num_kv_heads = 32, .head_dim = 128, .max_position_embeddings = 32768});
  const bool bias = json_get_or<bool>(config, "attention_bias", "config.json", false);
  const std::vector<std::int64_t> windows = qwen_windows(config, decoder.num_layers);
  return causal_language_model("Qwen3", decoder, config, [&](auto& tracer, std::int64_t layer, graph::Symbol x) {
    const SelfAttention attention{.class_name = "Qwen3Attention",
                                  .norm_class_name = "Qwen3RMSNorm",
                                  .qkv_bias = bias,
                                  .output_bias = bias,
                                  .window = windows[layer]};
    return pre_norm_layer(tracer, decoder, "Qwen3", attention, false, x);
  });
}

}  // namespace layerpress::model
