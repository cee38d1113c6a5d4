// Qwen 3: RMS norms on every head of q and k.
#include "layerpress/model/blocks/decoder_blocks.h"
#include "layerpress/model/families/families.h"

namespace layerpress::model {

TracedModel trace_qwen3(const Json& config) {
  const DecoderConfig decoder =
      parse_decoder_config(config, {.num_kv_heads = 32, .head_dim = 128, .max_position_embeddings = 32768});
  SelfAttention attention = configured_attention(config, "Qwen3Attention", "Qwen3RMSNorm");
  const std::vector<std::int64_t> windows = qwen_windows(config, decoder.num_layers);
  return causal_language_model("Qwen3", decoder, config, [&](auto& tracer, std::int64_t layer, graph::Symbol x) {
    attention.window = windows[layer];
    return pre_norm_layer(tracer, decoder, "Qwen3", attention, false, x);
  });
}

}  // namespace layerpress::model
