// DeepSeek V2 and V3: attention over a latent. llama.cpp absorbs what expands it: the keys' part of kv_b_proj into queries, for
// which each head's rows and columns change places, and the values' part into outputs.
#include "layerpress/gguf/architectures/decoder_architecture.h"
#include "layerpress/gguf/architectures/families.h"

namespace layerpress::gguf {
namespace {

struct LatentSizes {
  std::uint32_t latent = 0, plain = 0, rotated = 0, value = 0;
};

/// Of a file: keys and values have the size of the latent there, for one head.
void state_latent_sizes(DecoderArchitecture& made) {
  ModelConfig& config = made.config();
  if (config.file() == nullptr) return;
  config.state("num_key_value_heads", made.heads());
  config.forget("head_dim");
  config.forget("partial_rotary_factor");
  config.take("kv_lora_rank", "attention.kv_lora_rank");
  config.take("qk_rope_head_dim", "rope.dimension_count");
  config.take("v_head_dim", "attention.value_length_mla");
  config.take("qk_nope_head_dim", "attention.key_length_mla");
  const std::uint32_t whole = config.count("qk_nope_head_dim"), rotated = config.count("qk_rope_head_dim");
  config.require(whole > rotated, "qk_nope_head_dim", "has keys that are rotated in part");
  config.state("qk_nope_head_dim", whole - rotated);
}

void latent_attention(DecoderArchitecture& made) {
  ModelConfig& config = made.config();
  state_latent_sizes(made);
  config.require(config.flag("rope_interleave", true), "rope_interleave", "rotates neighbouring channels");
  const LatentSizes sizes{.latent = config.count("kv_lora_rank", 512),
                          .plain = config.count("qk_nope_head_dim", 128),
                          .rotated = config.count("qk_rope_head_dim", 64),
                          .value = config.count("v_head_dim", 128)};
  made.set("attention.head_count_kv", 1U);
  made.set("attention.kv_lora_rank", sizes.latent);
  made.set("attention.key_length", sizes.latent + sizes.rotated);
  made.set("attention.value_length", sizes.latent);
  made.set("attention.key_length_mla", sizes.plain + sizes.rotated);
  made.set("attention.value_length_mla", sizes.value);
  made.set("rope.dimension_count", sizes.rotated);
  made.set_first_kv_heads(1);
  const std::int64_t heads = made.heads(), rows = sizes.plain + sizes.value;
  const std::string module = "self_attn.kv_b_proj";
  made.layer(
      module,
      TensorPlace{.name = "attn_k_b", .rows = {heads, 0, sizes.plain}, .stacked_parts = true, .transposed_last = true});
  made.layer(module,
             TensorPlace{.name = "attn_v_b", .rows = {heads, sizes.plain, rows - sizes.plain}, .stacked_parts = true});
  made.layer("self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa");
  made.layer("self_attn.kv_a_layernorm", "attn_kv_a_norm");
  made.layer("self_attn.o_proj", "attn_output");
  made.read_scales({"attn_output"});
}

/// Whether q has a latent of its own; llama.cpp knows it by the number of layers.
void query_latent(DecoderArchitecture& made) {
  ModelConfig& config = made.config();
  if (made.reads("attention.q_lora_rank"))
    config.take("q_lora_rank", "attention.q_lora_rank");
  else
    config.state("q_lora_rank", nullptr);
  const bool plain = config.given("q_lora_rank") && !config.has("q_lora_rank");
  const std::int64_t layers = made.layers();
  const bool lite = layers == 26 || layers == 27 || (layers == 48 && config.count("vocab_size") == 128256);
  config.require(plain == lite, "q_lora_rank",
                 "of " + std::to_string(layers) + " layers has " + (lite ? "no" : "a") + " latent of q");
  if (plain) {
    made.layer("self_attn.q_proj", "attn_q");
    return;
  }
  made.set("attention.q_lora_rank", config.count("q_lora_rank", 1536));
  made.layer("self_attn.q_a_proj", "attn_q_a");
  made.layer("self_attn.q_a_layernorm", "attn_q_a_norm");
  made.layer("self_attn.q_b_proj", "attn_q_b");
}

/// Of a file.
void state_routing(DecoderArchitecture& made, bool v3) {
  ModelConfig& config = made.config();
  if (config.file() == nullptr) return;
  config.state("scoring_func", v3 ? "sigmoid" : "softmax");
  config.state("topk_method", v3 ? "noaux_tc" : "greedy");
  config.state("n_group", made.reads("expert_group_count") ? config.file()->value("expert_group_count") : Json(1));
  config.state("topk_group",
               made.reads("expert_group_used_count") ? config.file()->value("expert_group_used_count") : Json(1));
  config.take("routed_scaling_factor", "expert_weights_scale");
  config.state("norm_topk_prob",
               made.reads("expert_weights_norm") ? config.file()->value("expert_weights_norm") : Json(false));
}

void routing_keys(DecoderArchitecture& made, bool v3) {
  const ModelConfig& config = made.config();
  state_routing(made, v3);
  const std::string scores = config.text("scoring_func", v3 ? "sigmoid" : "softmax");
  config.require(scores == "sigmoid" || scores == "softmax", "scoring_func", "scores experts by softmax or sigmoid");
  made.set("expert_gating_func", scores == "sigmoid" ? 2U : 1U);
  const std::uint32_t groups = config.count_or_none("n_group");
  config.require(groups <= 1 || config.text("topk_method", v3 ? "noaux_tc" : "greedy") == "noaux_tc", "topk_method",
                 "chooses groups of experts by their best two");
  if (groups > 0) made.set("expert_group_count", groups);
  if (const std::uint32_t used = config.count_or_none("topk_group"); used > 0)
    made.set("expert_group_used_count", used);
  made.set("expert_weights_scale", static_cast<float>(config.number("routed_scaling_factor", v3 ? 2.5 : 1)));
  if (config.flag("norm_topk_prob", v3)) made.set("expert_weights_norm", true);
}

void experts(DecoderArchitecture& made, bool v3) {
  ModelConfig& config = made.config();
  config.take("first_k_dense_replace", "leading_dense_block_count");
  made.expert_keys("n_routed_experts", v3 ? 256 : 64, v3 ? 8 : 6);
  config.require(config.count("moe_layer_freq", 1) == 1, "moe_layer_freq",
                 "has experts in every layer behind the dense ones");
  made.set("leading_dense_block_count", config.has("first_k_dense_replace") ? config.natural("first_k_dense_replace")
                                        : v3                                ? 3U
                                                                            : 0U);
  const std::uint32_t width = made.count("expert_feed_forward_length", "moe_intermediate_size", v3 ? 2048 : 1407);
  made.count("expert_shared_count", "n_shared_experts", v3 ? 1 : 2);
  routing_keys(made, v3);
  made.layer("mlp.gate", "ffn_gate_inp");
  made.layer("mlp.gate.e_score_correction_bias", "exp_probs_b.bias");
  made.expert_names("mlp", width);
  for (const std::string part : {"gate", "up", "down"})
    made.layer("mlp.shared_experts." + part + "_proj", "ffn_" + part + "_shexp");
}

}  // namespace

Architecture deepseek2_architecture(ModelConfig& config) {
  const bool v3 = config.model_type() == "deepseek_v3";
  DecoderArchitecture made(config, {.name = "deepseek2", .context = v3 ? 4096U : 2048U});
  made.set("vocab_size", config.count("vocab_size"));
  latent_attention(made);
  query_latent(made);
  made.rope_scaling_keys();
  if (made.rope().kind == "yarn") {
    const double magnitude = made.rope().number("mscale_all_dim", 0);
    config.require(
        magnitude != 0 && made.rope().number("mscale", 0) == magnitude && !made.rope().has("attention_factor"),
        made.rope().entry, "scales scores by yarn's mscale, which is also its mscale_all_dim");
  }
  if (made.rope().has("mscale_all_dim"))
    made.set("rope.scaling.yarn_log_multiplier", static_cast<float>(0.1 * made.rope().number("mscale_all_dim", 0)));
  experts(made, v3);
  made.layer("input_layernorm", "attn_norm");
  made.layer("post_attention_layernorm", "ffn_norm");
  made.mlp_names();
  return made.take();
}

}  // namespace layerpress::gguf
