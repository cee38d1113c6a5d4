// SmolLM 3: Llama without rotary embedding in some layers (by default in every fourth).
#include "layerpress/model/blocks/decoder_blocks.h"
#include "layerpress/model/families/families.h"

namespace layerpress::model {
namespace {

/// Whether each layer encodes positions.
std::vector<bool> rotating_layers(const Json& config, std::int64_t num_layers) {
  const auto interval = json_get_or<std::int64_t>(config, "no_rope_layer_interval", kConfigFile, 4);
  if (interval < 1)
    throw CheckpointError("[model.config] config.json: no_rope_layer_interval {} is not positive", interval);
  std::vector<std::int64_t> listed = json_get_or<std::vector<std::int64_t>>(config, "no_rope_layers", kConfigFile, {});
  if (listed.empty())
    for (std::int64_t layer = 0; layer < num_layers; ++layer) listed.push_back((layer + 1) % interval != 0);
  if (static_cast<std::int64_t>(listed.size()) < num_layers)
    throw CheckpointError("[model.config] config.json: no_rope_layers has {} entries for {} layers", listed.size(),
                          num_layers);
  return {listed.begin(), listed.begin() + num_layers};
}

}  // namespace

TracedModel trace_smollm3(const Json& config) {
  const DecoderConfig decoder = parse_decoder_config(
      config,
      {.num_kv_heads = 4, .max_position_embeddings = 32768, .tie_word_embeddings = true, .rope_theta = 2'000'000});
  const std::vector<bool> rotates = rotating_layers(config, decoder.num_layers);
  const bool windows_on = json_get_or<bool>(config, "use_sliding_window", kConfigFile, false);
  const auto window = windows_on ? json_get_or<std::int64_t>(config, "sliding_window", kConfigFile, 0) : 0;
  const std::vector<bool> sliding =
      sliding_layers(config, decoder.num_layers, [&](std::int64_t layer) { return !rotates[layer]; });
  SelfAttention attention = configured_attention(config, "SmolLM3Attention");
  const bool mlp_bias = json_get_or<bool>(config, "mlp_bias", kConfigFile, false);
  return causal_language_model("SmolLM3", decoder, config, [&](auto& tracer, std::int64_t layer, graph::Symbol x) {
    attention.window = sliding[layer] ? window : 0;
    attention.rotates = rotates[layer];
    return pre_norm_layer(tracer, decoder, "SmolLM3", attention, mlp_bias, x);
  });
}

}  // namespace layerpress::model
