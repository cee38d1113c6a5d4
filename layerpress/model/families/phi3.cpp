// Phi 3, 3.5 and 4: Llama with q, k, v in one weight and gate, up in another, both in checkpoints and in inference
// engines.
#include <cmath>

#include "layerpress/model/blocks/decoder_blocks.h"
#include "layerpress/model/families/families.h"

namespace layerpress::model {
namespace {

using graph::Symbol;
using graph::Tracer;

Symbol phi3_attention(Tracer& tracer, const DecoderConfig& config, std::int64_t window, Symbol x) {
  const auto scope = tracer.module("self_attn", "Phi3Attention");
  const std::int64_t q_size = config.num_heads * config.head_dim, kv_size = config.num_kv_heads * config.head_dim;
  const std::int64_t size = q_size + 2 * kv_size;
  const Symbol qkv = tracer.linear("qkv_proj", x, size);
  const Symbol q = tracer.slice(qkv, {.size = size, .begin = 0, .end = q_size});
  const Symbol k = tracer.slice(qkv, {.size = size, .begin = q_size, .end = q_size + kv_size});
  const Symbol v = tracer.slice(qkv, {.size = size, .begin = q_size + kv_size, .end = size});
  const double scale = 1.0 / std::sqrt(static_cast<double>(config.head_dim));
  const Symbol mixed = tracer.attention(tracer.rotary(q, config.head_dim, 0), tracer.rotary(k, config.head_dim, 0), v,
                                        {config.num_heads, config.num_kv_heads, config.head_dim, scale, window});
  return tracer.linear("o_proj", mixed, config.hidden_size);
}

Symbol phi3_mlp(Tracer& tracer, const DecoderConfig& config, Symbol x) {
  const auto scope = tracer.module("mlp", "Phi3MLP");
  const std::int64_t size = 2 * config.intermediate_size;
  const Symbol both = tracer.linear("gate_up_proj", x, size);
  const Symbol gate = tracer.slice(both, {.size = size, .begin = 0, .end = config.intermediate_size});
  const Symbol up = tracer.slice(both, {.size = size, .begin = config.intermediate_size, .end = size});
  return tracer.linear("down_proj", tracer.gated_activation(config.hidden_act, gate, up), config.hidden_size);
}

/// Early checkpoints call longrope "su" or "yarn" and have the original length beside the rope parameters.
Json phi3_rope(const Json& config) {
  Json changed = config;
  const auto length = json_get_or<std::int64_t>(config, "original_max_position_embeddings", "config.json", 4096);
  changed["original_max_position_embeddings"] = length;
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (!changed.contains(key) || !changed[key].is_object()) continue;
    for (const char* kind : {"type", "rope_type"})
      if (changed[key].contains(kind) && (changed[key][kind] == "su" || changed[key][kind] == "yarn"))
        changed[key][kind] = "longrope";
  }
  return changed;
}

}  // namespace

TracedModel trace_phi3(const Json& config) {
  const DecoderConfig decoder = parse_decoder_config(config, {.max_position_embeddings = 4096, .epsilon = 1e-5});
  const auto window = json_get_or<std::int64_t>(config, "sliding_window", "config.json", 0);
  const auto layer = [&](Tracer& tracer, std::int64_t, Symbol x) {
    return pre_norm_layer(
        tracer, decoder, "Phi3", [&](Symbol input) { return phi3_attention(tracer, decoder, window, input); },
        [&](Symbol input) { return phi3_mlp(tracer, decoder, input); }, x);
  };
  const ModelEnds ends{.rope_tables = {parse_rope(phi3_rope(config), decoder, /*rotates_part=*/true)}};
  TracedModel model = causal_language_model("Phi3", decoder, config, layer, ends);
  model.fused_modules = {};
  return model;
}

}  // namespace layerpress::model
