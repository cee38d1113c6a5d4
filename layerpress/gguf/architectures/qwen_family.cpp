// Qwen 2 and 3, dense and with experts.
#include "layerpress/gguf/architectures/decoder_architecture.h"
#include "layerpress/gguf/architectures/families.h"

namespace layerpress::gguf {
namespace {

void qwen_layer_names(DecoderArchitecture& made) {
  made.rope_scaling_keys();
  if (made.config().flag("use_sliding_window", false)) made.end_context_at_window();
  made.layer("input_layernorm", "attn_norm");
  made.attention_names();
  made.layer("post_attention_layernorm", "ffn_norm");
}

void head_norm_names(DecoderArchitecture& made) {
  made.layer("self_attn.q_norm", "attn_q_norm");
  made.layer("self_attn.k_norm", "attn_k_norm");
}

void qwen_experts(DecoderArchitecture& made, std::uint32_t experts, std::uint32_t used, bool normalized) {
  ModelConfig& config = made.config();
  made.expert_keys("num_experts", experts, used);
  const std::uint32_t width = made.count("expert_feed_forward_length", "moe_intermediate_size");
  config.state("norm_topk_prob", normalized);
  config.require(config.count("decoder_sparse_step", 1) == 1, "decoder_sparse_step", "has experts in every layer");
  config.require(config.list("mlp_only_layers").empty(), "mlp_only_layers", "has experts in every layer");
  config.require(
      config.flag("norm_topk_prob", false) == normalized, "norm_topk_prob",
      normalized ? "makes the weights of the chosen experts add up to 1" : "takes the weights of experts as they are");
  made.layer("mlp.gate", "ffn_gate_inp");
  made.expert_names("mlp", width);
}

}  // namespace

Architecture qwen2_architecture(ModelConfig& config) {
  DecoderArchitecture made(config, {.name = "qwen2", .context = 32768, .own_head_dim = false});
  qwen_layer_names(made);
  made.mlp_names();
  return made.take();
}

Architecture qwen2moe_architecture(ModelConfig& config) {
  DecoderArchitecture made(config, {.name = "qwen2moe", .context = 32768, .needs_output = true, .own_head_dim = false});
  qwen_layer_names(made);
  qwen_experts(made, 60, 4, /*normalized=*/false);
  made.count("expert_shared_feed_forward_length", "shared_expert_intermediate_size");
  made.layer("mlp.shared_expert_gate", "ffn_gate_inp_shexp");
  for (const std::string part : {"gate", "up", "down"})
    made.layer("mlp.shared_expert." + part + "_proj", "ffn_" + part + "_shexp");
  return made.take();
}

Architecture qwen3_architecture(ModelConfig& config) {
  DecoderArchitecture made(config, {.name = "qwen3", .head_dim = 128, .context = 32768});
  qwen_layer_names(made);
  head_norm_names(made);
  made.mlp_names();
  made.read_scales({"ffn_gate", "ffn_up", "ffn_down"});
  return made.take();
}

Architecture qwen3moe_architecture(ModelConfig& config) {
  DecoderArchitecture made(config, {.name = "qwen3moe", .kv_heads = 4, .context = 32768});
  qwen_layer_names(made);
  head_norm_names(made);
  qwen_experts(made, 128, 8, /*normalized=*/true);
  made.read_scales({"ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"});
  return made.take();
}

}  // namespace layerpress::gguf
