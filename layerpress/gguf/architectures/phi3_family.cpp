// Phi 3 and 4: q, k, v in one weight, gate and up in another, and two sets of rope factors for short and long texts.
#include <cmath>

#include "layerpress/gguf/architectures/decoder_architecture.h"
#include "layerpress/gguf/architectures/families.h"

namespace layerpress::gguf {
namespace {

std::vector<float> rope_factors(const RopeConfig& rope, const char* key, std::uint32_t rotated) {
  auto values = json_get<std::vector<float>>(rope.parameters, key, "config.json: rope parameters");
  if (values.size() * 2 != rotated)
    throw CheckpointError("[gguf.config] config.json: '{}' has {} entries, expected {}", key, values.size(),
                          rotated / 2);
  return values;
}

/// By how much stretched positions scale queries and keys.
double longrope_magnitude(double context, double original) {
  const double scale = context / original;
  return scale > 1 ? std::sqrt(1 + std::log(scale) / std::log(original)) : 1;
}

void longrope_keys(DecoderArchitecture& made, std::uint32_t context, std::uint32_t original, std::uint32_t rotated) {
  const RopeConfig& rope = made.rope();
  if (rope.kind == "default") return;
  made.config().require(rope.kind == "longrope" || rope.kind == "su", "rope_scaling",
                        "stretches positions by longrope only");
  const double magnitude = rope.number("attention_factor", longrope_magnitude(context, original));
  made.set("rope.scaling.attn_factor", static_cast<float>(magnitude));
  made.set_made({.name = "rope_factors_long.weight", .values = rope_factors(rope, "long_factor", rotated)});
  made.set_made({.name = "rope_factors_short.weight", .values = rope_factors(rope, "short_factor", rotated)});
}

}  // namespace

Architecture phi3_architecture(ModelConfig& config) {
  DecoderArchitecture made(config, {.name = "phi3", .context = 4096, .epsilon = 1e-5, .own_head_dim = false});
  if (made.reads("rope.scaling.original_context_length"))
    config.take("original_max_position_embeddings", "rope.scaling.original_context_length");
  if (made.reads("attention.sliding_window")) config.take("sliding_window", "attention.sliding_window");
  if (config.count_or_none("sliding_window") == 0) config.state("sliding_window", nullptr);
  const std::uint32_t context = config.count("max_position_embeddings", 4096);
  const std::uint32_t original =
      config.count("original_max_position_embeddings",
                   without_fraction(made.rope().number("original_max_position_embeddings", context),
                                    "original_max_position_embeddings"));
  const std::uint32_t rotated =
      without_fraction(made.rope().rotated_part * made.head_dim(), "partial_rotary_factor times head_dim");
  config.require(rotated > 0 && rotated % 2 == 0, "partial_rotary_factor", "rotates an even number of features");
  made.set("rope.dimension_count", rotated);
  made.set("rope.scaling.original_context_length", original);
  longrope_keys(made, context, original, rotated);
  made.set("attention.sliding_window", config.count_or_none("sliding_window"));
  made.end_context_at_window();
  made.layer("input_layernorm", "attn_norm");
  made.layer("self_attn.qkv_proj", "attn_qkv");
  made.layer("self_attn.o_proj", "attn_output");
  made.read_scales({"attn_qkv", "attn_output"});
  made.layer("post_attention_layernorm", "ffn_norm");
  made.layer("mlp.gate_up_proj", "ffn_up");
  made.layer("mlp.down_proj", "ffn_down");
  return made.take();
}

}  // namespace layerpress::gguf
