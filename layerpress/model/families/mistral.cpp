// Mistral: Llama with a sliding window in every layer (null: none).
#include "layerpress/model/blocks/decoder_blocks.h"
#include "layerpress/model/families/families.h"

namespace layerpress::model {

TracedModel trace_mistral(const Json& config) {
  const DecoderConfig decoder = parse_decoder_config(config, {.num_kv_heads = 8, .max_position_embeddings = 131072});
  // The class's default applies only if the key is missing; an explicit null means full attention.
  const auto window =
      config.contains("sliding_window") ? json_get_or<std::int64_t>(config, "sliding_window", "config.json", 0) : 4096;
  const SelfAttention attention{.class_name = "MistralAttention", .window = window};
  return causal_language_model("Mistral", decoder, config, [&](auto& tracer, std::int64_t, graph::Symbol x) {
    return pre_norm_layer(tracer, decoder, "Mistral", attention, false, x);
  });
}

}  // namespace layerpress::model
