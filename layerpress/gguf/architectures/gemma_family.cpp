// Gemma 2 and 3 (text): norms that multiply with 1 + weight, whose sum the GGUF holds.
#include "layerpress/gguf/architectures/decoder_architecture.h"
#include "layerpress/gguf/architectures/families.h"

namespace layerpress::gguf {
namespace {

DecoderTraits gemma_traits(const std::string& name, std::uint32_t context, double theta) {
  return {.name = name,
          .kv_heads = 4,
          .head_dim = 256,
          .context = context,
          .tied = true,
          .activation_key = "hidden_activation",
          .activation = "gelu_pytorch_tanh",
          .rope = {theta, 1}};
}

void norm_names(DecoderArchitecture& made, bool head_norms) {
  const auto norm = [&](const char* module, const char* tensor) {
    made.layer(module, TensorPlace{.name = tensor, .added = 1});
  };
  norm("input_layernorm", "attn_norm");
  norm("post_attention_layernorm", "post_attention_norm");
  norm("pre_feedforward_layernorm", "ffn_norm");
  norm("post_feedforward_layernorm", "post_ffw_norm");
  if (!head_norms) return;
  norm("self_attn.q_norm", "attn_q_norm");
  norm("self_attn.k_norm", "attn_k_norm");
}

/// llama.cpp scales queries by the size of heads, but by hidden_size / heads in the models with `odd_layers` layers.
void check_query_scale(DecoderArchitecture& made, std::int64_t odd_layers) {
  const std::uint32_t scalar = made.layers() == odd_layers ? made.hidden_size() / made.heads() : made.head_dim();
  made.config().state("query_pre_attn_scalar", scalar);
  made.config().require(made.config().number("query_pre_attn_scalar", 256) == scalar, "query_pre_attn_scalar",
                        "scales queries by 1 / sqrt(" + std::to_string(scalar) + ")");
}

}  // namespace

Architecture gemma2_architecture(ModelConfig& config) {
  DecoderArchitecture made(config, gemma_traits("gemma2", 8192, 10000));
  config.require(config.flag("tie_word_embeddings", true), "tie_word_embeddings", "reads logits off the embeddings");
  check_query_scale(made, 46);
  made.rope_scaling_keys();
  for (const auto& [key, otherwise] : {std::pair{"attn_logit_softcapping", 50.0}, {"final_logit_softcapping", 30.0}}) {
    config.take(key, key);
    const double cap = config.has(key) || !config.given(key) ? config.number(key, otherwise) : 0;
    config.require(cap > 0, key, "always has a cap");
    made.set(key, static_cast<float>(cap));
  }
  made.count("attention.sliding_window", "sliding_window", 4096);
  made.window_pattern([](std::int64_t layer) { return layer % 2 == 0; });
  made.attention_names();
  norm_names(made, false);
  made.mlp_names();
  made.names().set_added("model.norm", 1);
  return made.take();
}

Architecture gemma3_architecture(ModelConfig& config) {
  DecoderArchitecture made(config, gemma_traits("gemma3", 131072, 1e6));
  check_query_scale(made, 62);
  if (made.rope().local_theta == 0) made.set("rope.freq_base_swa", 10000.0F);
  config.require(config.number("attn_logit_softcapping", 0) == 0, "attn_logit_softcapping", "has no cap of scores");
  made.rope_scaling_keys();
  if (made.reads("final_logit_softcapping")) config.take("final_logit_softcapping", "final_logit_softcapping");
  if (const double cap = config.number("final_logit_softcapping", 0); cap > 0)
    made.set("final_logit_softcapping", static_cast<float>(cap));
  if (config.file() != nullptr && !made.reads("attention.sliding_window")) config.state("sliding_window_pattern", 1);
  if (config.count_or_none("sliding_window_pattern") != 1) {
    made.count("attention.sliding_window", "sliding_window", 4096);
    made.window_pattern([](std::int64_t layer) { return (layer + 1) % 6 != 0; });
  }
  made.attention_names();
  norm_names(made, true);
  made.mlp_names();
  made.names().set_added("model.norm", 1);
  return made.take();
}

}  // namespace layerpress::gguf
