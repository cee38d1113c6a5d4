// Granite 3: Llama with multipliers on embeddings, scores, residual branches and logits.
#include "layerpress/model/blocks/decoder_blocks.h"
#include "layerpress/model/families/families.h"

namespace layerpress::model {

TracedModel trace_granite(const Json& config) {
  const DecoderConfig decoder = parse_decoder_config(config, {});
  const auto number = [&](const char* key) {
    const auto value = json_get_or<double>(config, key, "config.json", 1);
    if (value == 0) throw CheckpointError("[model.config] config.json: '{}' must not be zero", key);
    return value;
  };
  SelfAttention attention = configured_attention(config, "GraniteAttention");
  const bool mlp_bias = json_get_or<bool>(config, "mlp_bias", "config.json", false);
  attention.scale = number("attention_multiplier");
  const double residual = number("residual_multiplier");
  const auto layer = [&](graph::Tracer& tracer, std::int64_t, graph::Symbol x) {
    const auto add_scaled = [&](graph::Symbol y) {
      return tracer.add(x, residual == 1 ? y : tracer.scale(y, {.factor = residual}));
    };
    x = add_scaled(self_attention(tracer, decoder, attention,
                                  decoder_norm(tracer, decoder, "input_layernorm", "GraniteRMSNorm", x)));
    const graph::Symbol mlp_input = decoder_norm(tracer, decoder, "post_attention_layernorm", "GraniteRMSNorm", x);
    return add_scaled(gated_mlp(tracer, decoder, "GraniteMLP", mlp_bias, mlp_input));
  };
  return causal_language_model(
      "Granite", decoder, config, layer,
      {.embedding_scale = {.factor = number("embedding_multiplier")}, .logit_scale = 1 / number("logits_scaling")});
}

}  // namespace layerpress::model
