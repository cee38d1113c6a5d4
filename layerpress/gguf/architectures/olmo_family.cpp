// OLMo 2 and 3, with norms behind attention and MLP, and OLMoE.
#include "layerpress/gguf/architectures/decoder_architecture.h"
#include "layerpress/gguf/architectures/families.h"

namespace layerpress::gguf {
namespace {

void row_norm_names(DecoderArchitecture& made) {
  made.layer("self_attn.q_norm", "attn_q_norm");
  made.layer("self_attn.k_norm", "attn_k_norm");
}

}  // namespace

Architecture olmo2_architecture(ModelConfig& config) {
  const bool has_windows = config.model_type() == "olmo3";
  constexpr double kTheta = 500000;  // of layers with a window, whatever a rope_theta for all layers says
  DecoderArchitecture made(config, {.name = "olmo2",
                                    .epsilon = 1e-5,
                                    .needs_output = true,
                                    .own_head_dim = false,
                                    .rope = {has_windows ? kTheta : 10000, 1, has_windows}});
  made.rope_scaling_keys();
  if (has_windows) {
    const double local = made.rope().local_theta;
    config.require((local == 0 ? kTheta : local) == made.rope().theta,
                   config.has("rope_parameters") ? "rope_parameters" : "rope_theta",
                   "has one rope_theta for all layers");
    made.count("attention.sliding_window", "sliding_window", 4096);
    made.window_pattern([](std::int64_t layer) { return (layer + 1) % 4 != 0; });
  }
  made.attention_names();
  row_norm_names(made);
  made.layer("post_attention_layernorm", "post_attention_norm");
  made.layer("post_feedforward_layernorm", "post_ffw_norm");
  made.mlp_names();
  return made.take();
}

Architecture olmoe_architecture(ModelConfig& config) {
  DecoderArchitecture made(
      config, {.name = "olmoe", .context = 4096, .epsilon = 1e-5, .needs_output = true, .own_head_dim = false});
  made.rope_scaling_keys();
  made.expert_keys("num_experts", 64, 8);
  config.require(!config.has("clip_qkv"), "clip_qkv", "does not clip q, k and v");
  config.require(!config.flag("norm_topk_prob", false), "norm_topk_prob", "takes the weights of experts as they are");
  config.require(made.kv_heads() == made.heads(), "num_key_value_heads", "has as many key-value heads as heads");
  made.layer("input_layernorm", "attn_norm");
  made.attention_names();
  row_norm_names(made);
  made.layer("post_attention_layernorm", "ffn_norm");
  made.layer("mlp.gate", "ffn_gate_inp");
  made.expert_names("mlp", config.count("intermediate_size"));
  return made.take();
}

}  // namespace layerpress::gguf
