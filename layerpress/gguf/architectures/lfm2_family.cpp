// LFM 2: short convolutions in most layers, attention in the others.
#include <cmath>

#include "layerpress/gguf/architectures/decoder_architecture.h"
#include "layerpress/gguf/architectures/families.h"

namespace layerpress::gguf {
namespace {

/// The MLP's width: two thirds of what config.json says, scaled and rounded up, if it says so.
std::uint32_t mlp_width(const ModelConfig& config) {
  const std::uint32_t whole = config.count(config.has("block_ff_dim") ? "block_ff_dim" : "intermediate_size");
  if (!config.flag("block_auto_adjust_ff_dim", true)) return whole;
  const double two_thirds = std::floor(2.0 * whole / 3);
  const double width = std::floor(two_thirds * config.number("block_ffn_dim_multiplier", 1));
  const double multiple = config.count("block_multiple_of", 256);
  return without_fraction(multiple * std::ceil(width / multiple), "block_ff_dim, adjusted,");
}

/// Of a file: layers without key-value heads are convolutions.
void state_kinds_of_layers(DecoderArchitecture& made) {
  if (made.config().file() == nullptr) return;
  Json kinds = Json::array();
  for (const Json& heads : made.config().file()->value("attention.head_count_kv"))
    kinds.push_back(heads == 0 ? "conv" : "full_attention");
  made.config().state("layer_types", std::move(kinds));
}

std::vector<std::int32_t> kv_heads_of_layers(const DecoderArchitecture& made) {
  const std::vector<std::string> kinds = made.config().texts("layer_types");
  made.config().require(static_cast<std::int64_t>(kinds.size()) == made.layers(), "layer_types",
                        "has a kind for each layer");
  std::vector<std::int32_t> heads;
  for (const std::string& kind : kinds) {
    made.config().require(kind == "conv" || kind == "full_attention", "layer_types",
                          "has convolutions and full attention");
    heads.push_back(kind == "conv" ? 0 : static_cast<std::int32_t>(made.kv_heads()));
  }
  return heads;
}

}  // namespace

Architecture lfm2_architecture(ModelConfig& config) {
  DecoderArchitecture made(config, {.name = "lfm2",
                                    .kv_heads = 8,
                                    .context = 128000,
                                    .width_key = config.has("block_ff_dim") ? "block_ff_dim" : "intermediate_size",
                                    .epsilon_key = "norm_eps",
                                    .epsilon = 1e-5,
                                    .tied = config.flag("tie_embedding", true),
                                    .own_head_dim = false,
                                    .rope = {1e6, 1}});
  made.rope_scaling_keys();
  state_kinds_of_layers(made);
  const std::vector<std::int32_t> kv_heads = kv_heads_of_layers(made);
  made.set("attention.head_count_kv", kv_heads);
  made.set_first_kv_heads(kv_heads[0]);
  made.set("vocab_size", config.count("vocab_size"));
  made.count("shortconv.l_cache", "conv_L_cache", 3);
  config.state("block_auto_adjust_ff_dim", false);
  made.set("feed_forward_length", mlp_width(config));
  config.require(!config.flag("conv_bias", false), "conv_bias", "has convolutions without bias");
  made.names().add("model.embedding_norm", "token_embd_norm");
  made.layer("operator_norm", "attn_norm");
  made.layer("ffn_norm", "ffn_norm");
  made.layer("conv.conv", TensorPlace{.name = "shortconv.conv", .squeezed = true});
  made.layer("conv.in_proj", "shortconv.in_proj");
  made.layer("conv.out_proj", "shortconv.out_proj");
  made.layer("self_attn.out_proj", "attn_output");  // before o_proj, which files of other families become
  made.attention_names();
  made.layer("self_attn.q_layernorm", "attn_q_norm");
  made.layer("self_attn.k_layernorm", "attn_k_norm");
  made.layer("feed_forward.w1", "ffn_gate");
  made.layer("feed_forward.w2", "ffn_down");
  made.layer("feed_forward.w3", "ffn_up");
  return made.take();
}

}  // namespace layerpress::gguf
