// Cohere 2: one LayerNorm before attention and MLP side by side; rotates neighbours, as llama.cpp does.
#include "layerpress/gguf/architectures/decoder_architecture.h"
#include "layerpress/gguf/architectures/families.h"

namespace layerpress::gguf {

Architecture cohere2_architecture(ModelConfig& config) {
  DecoderArchitecture made(config, {.name = "cohere2",
                                    .context = 8192,
                                    .epsilon_key = "layer_norm_eps",
                                    .epsilon = 1e-5,
                                    .layer_norm = true,
                                    .tied = true,
                                    .own_head_dim = false});
  config.require(config.flag("tie_word_embeddings", true), "tie_word_embeddings", "reads logits off the embeddings");
  config.require(made.rope().kind == "default", "rope_scaling", "does not stretch positions");
  made.set("rope.scaling.type", std::string("none"));
  made.number("logit_scale", "logit_scale", 0.0625);
  if (config.has("vision_config") && config.number("logit_scale", 0.0625) != 1)
    made.note(
        "llama.cpp multiplies logits by logit_scale; transformers does so for the text model alone, not for the model "
        "with images");
  made.count("attention.sliding_window", "sliding_window", 4096);
  made.set("vocab_size", config.count("vocab_size"));
  made.set("rope.dimension_count",
           without_fraction(config.number("rotary_pct", 1) * made.head_dim(), "rotary_pct times head_dim"));
  made.window_pattern([](std::int64_t layer) { return (layer + 1) % 4 != 0; });
  made.layer("input_layernorm", "attn_norm");
  made.attention_names();
  made.mlp_names();
  made.read_scales({"ffn_gate", "ffn_up", "ffn_down"});
  return made.take();
}

}  // namespace layerpress::gguf
