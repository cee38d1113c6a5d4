// Llama and what llama.cpp treats like it: rows of q and k in pairs of neighbours.
#include <map>

#include "layerpress/gguf/architectures/decoder_architecture.h"
#include "layerpress/gguf/architectures/families.h"

namespace layerpress::gguf {
namespace {

/// The keys of all of them.
void llama_keys(DecoderArchitecture& made) {
  made.set("vocab_size", made.config().count("vocab_size"));
  made.set("rope.dimension_count", made.head_dim());
  made.rope_scaling_keys();
}

void llama_layer_names(DecoderArchitecture& made, bool biases) {
  made.layer("input_layernorm", "attn_norm");
  made.attention_names(/*paired=*/true, /*output_bias=*/biases);
  made.layer("post_attention_layernorm", "ffn_norm");
}

}  // namespace

Architecture llama_architecture(ModelConfig& config) {
  const bool mistral = config.model_type() == "mistral";
  DecoderArchitecture made(
      config,
      {.name = "llama", .kv_heads = mistral ? 8U : 0, .context = mistral ? 131072U : 2048U, .own_head_dim = true});
  llama_keys(made);
  if (mistral) made.end_context_at_window();
  llama_layer_names(made, true);
  made.mlp_names(/*bias=*/true);
  if (!config.flag("mlp_bias", false)) made.read_scales({"ffn_gate", "ffn_up", "ffn_down"});
  return made.take();
}

Architecture mixtral_architecture(ModelConfig& config) {
  DecoderArchitecture made(config,
                           {.name = "llama", .kv_heads = 8, .context = 131072, .epsilon = 1e-5, .rope = {1e6, 1}});
  llama_keys(made);
  made.end_context_at_window();
  made.expert_keys("num_local_experts", 8, 2);
  llama_layer_names(made, false);
  for (const std::string module : {"block_sparse_moe", "mlp"}) {
    made.layer(module + ".gate", "ffn_gate_inp");
    made.layer(module + ".experts.#.w1", "ffn_gate_exps");
    made.layer(module + ".experts.#.w2", "ffn_down_exps");
    made.layer(module + ".experts.#.w3", "ffn_up_exps");
    made.expert_names(module, config.count("intermediate_size"));
  }
  made.read_scales({"ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"});
  return made.take();
}

Architecture granite_architecture(ModelConfig& config) {
  DecoderArchitecture made(config, {.name = "granite", .own_head_dim = false});
  llama_keys(made);
  const std::map<std::string, std::string> multipliers = {{"attention_multiplier", "attention.scale"},
                                                          {"embedding_multiplier", "embedding_scale"},
                                                          {"residual_multiplier", "residual_scale"},
                                                          {"logits_scaling", "logit_scale"}};
  for (const auto& [from, to] : multipliers) made.number(to, from.c_str(), 1);
  llama_layer_names(made, true);
  made.mlp_names(/*bias=*/true);
  return made.take();
}

Architecture smollm3_architecture(ModelConfig& config) {
  DecoderArchitecture made(config,
                           {.name = "smollm3", .kv_heads = 4, .context = 32768, .tied = true, .rope = {2e6, 1}});
  llama_keys(made);
  config.require(!config.flag("use_sliding_window", false), "use_sliding_window", "has no sliding window");
  config.require(config.count("no_rope_layer_interval", 4) == 4, "no_rope_layer_interval",
                 "leaves out positions in every 4th layer");
  const Json listed = config.list("no_rope_layers");
  for (std::size_t i = 0; i < listed.size(); ++i)
    config.require(listed[i] == ((i + 1) % 4 != 0 ? 1 : 0), "no_rope_layers",
                   "leaves out positions in every 4th layer");
  llama_layer_names(made, false);
  made.mlp_names();
  return made.take();
}

}  // namespace layerpress::gguf
