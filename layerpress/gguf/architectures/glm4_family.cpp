// GLM 4 (0414): norms around attention and MLP, gate and up in one weight, half of each head rotated in pairs of neighbours.
#include "layerpress/gguf/architectures/decoder_architecture.h"
#include "layerpress/gguf/architectures/families.h"

namespace layerpress::gguf {

Architecture glm4_architecture(ModelConfig& config) {
  DecoderArchitecture made(
      config,
      {.name = "glm4", .kv_heads = 2, .head_dim = 128, .context = 131072, .epsilon = 1.5625e-7, .rope = {10000, 0.5}});
  config.require(!made.rope().has("mrope_section"), "rope_parameters",
                 "of a language model has positions of one dimension");
  made.rope_scaling_keys();
  made.rotated_part_key();
  made.layer("input_layernorm", "attn_norm");
  made.attention_names();
  made.layer("post_self_attn_layernorm", "post_attention_norm");
  made.layer("post_attention_layernorm", "ffn_norm");
  made.layer("mlp.gate_up_proj", "ffn_up");
  made.layer("mlp.down_proj", "ffn_down");
  made.layer("post_mlp_layernorm", "post_ffw_norm");
  return made.take();
}

}  // namespace layerpress::gguf
