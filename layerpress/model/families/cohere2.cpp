// Cohere 2 (Command R7B, Command A): attention and MLP read one normalized value, and their outputs are added. Layers
// with a sliding window rotate interleaved features; the other layers do not encode positions. Logits are scaled.
#include "layerpress/model/blocks/decoder_blocks.h"
#include "layerpress/model/families/families.h"

namespace layerpress::model {

TracedModel trace_cohere2(const Json& config) {
  DecoderConfig decoder = parse_decoder_config(config, {.max_position_embeddings = 8192,
                                                        .tie_word_embeddings = true,
                                                        .norm = NormKind::kLayer,
                                                        .epsilon_key = "layer_norm_eps",
                                                        .epsilon = 1e-5});
  SelfAttention attention = configured_attention(config, "Cohere2Attention");
  attention.interleaved = true;
  const std::int64_t window = window_size(config);
  const auto pattern = json_get_or<std::int64_t>(config, "sliding_window_pattern", kConfigFile, 4);
  if (pattern < 1)
    throw CheckpointError("[model.config] config.json: sliding_window_pattern {} is not positive", pattern);
  const std::vector<bool> sliding =
      sliding_layers(config, decoder.num_layers, [&](std::int64_t layer) { return (layer + 1) % pattern != 0; });
  const auto layer = [&](graph::Tracer& tracer, std::int64_t index, graph::Symbol x) {
    attention.window = sliding[index] ? window : 0;
    attention.rotates = attention.window > 0;
    const graph::Symbol input = decoder_norm(tracer, decoder, "input_layernorm", "Cohere2LayerNorm", x);
    const graph::Symbol sum = tracer.add(x, self_attention(tracer, decoder, attention, input));
    return tracer.add(sum, gated_mlp(tracer, decoder, "Cohere2MLP", /*bias=*/false, input));
  };
  const auto logit_scale = json_get_or<double>(config, "logit_scale", kConfigFile, 0.0625);
  return causal_language_model("Cohere2", decoder, config, layer, {.logit_scale = logit_scale});
}

}  // namespace layerpress::model
