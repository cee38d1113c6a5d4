// Llama 1, 2, 3.x and models with the same classes (SmolLM, TinyLlama, Yi, ...).
#include "layerpress/model/blocks/decoder_blocks.h"
#include "layerpress/model/families/families.h"

namespace layerpress::model {

TracedModel trace_llama(const Json& config) {
  const DecoderConfig decoder = parse_decoder_config(config, {});
  const SelfAttention attention = configured_attention(config, "LlamaAttention");
  const bool mlp_bias = json_get_or<bool>(config, "mlp_bias", "config.json", false);
  return causal_language_model("Llama", decoder, config, [&](auto& tracer, std::int64_t, graph::Symbol x) {
    return pre_norm_layer(tracer, decoder, "Llama", attention, mlp_bias, x);
  });
}

}  // namespace layerpress::model
