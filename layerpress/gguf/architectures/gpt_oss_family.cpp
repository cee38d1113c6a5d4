// gpt-oss: experts with biases, attention sinks, a window in every other layer.
#include "layerpress/gguf/architectures/decoder_architecture.h"
#include "layerpress/gguf/architectures/families.h"

namespace layerpress::gguf {
namespace {

/// The checkpoint's stacks have inputs as rows, and gate and up in turn.
void stacked_names(DecoderArchitecture& made, std::int64_t width) {
  const auto stack = [&](const std::string& module, const std::string& tensor, RowRange rows, bool matrix) {
    made.layer("mlp.experts." + module, TensorPlace{.name = tensor, .transposed_first = matrix, .rows = rows});
  };
  stack("gate_up_proj", "ffn_gate_exps.weight", {width, 0, 1}, true);
  stack("gate_up_proj", "ffn_up_exps.weight", {width, 1, 1}, true);
  stack("gate_up_proj_bias", "ffn_gate_exps.bias", {width, 0, 1}, false);
  stack("gate_up_proj_bias", "ffn_up_exps.bias", {width, 1, 1}, false);
  stack("down_proj", "ffn_down_exps.weight", {}, true);
  stack("down_proj_bias", "ffn_down_exps.bias", {}, false);
}

/// Of a file. A config.json that says nothing of rope means yarn, whose range is not rounded to whole features. llama.cpp, which always
/// rounds it, has no key for a model that does so, too; ours tells what reads the file again.
void state_scaling(DecoderArchitecture& made) {
  constexpr const char* kRounds = "rope.scaling.truncate";
  ModelConfig& config = made.config();
  Json scaling = config.has("rope_scaling") ? config.object("rope_scaling") : Json{{"rope_type", "default"}};
  if (made.rope().kind == "yarn") {
    const bool rounds = config.file() != nullptr ? config.file()->value(kRounds) == Json(true)
                                                 : made.rope().parameters.value("truncate", Json(true)) != Json(false);
    if (rounds)
      made.set(kRounds, true);
    else
      made.note(
          "llama.cpp rounds the range of yarn to whole features, which this model does not do, so that its logits "
          "differ");
    scaling["truncate"] = rounds;
  }
  config.state("rope_scaling", std::move(scaling));
}

}  // namespace

Architecture gpt_oss_architecture(ModelConfig& config) {
  DecoderArchitecture made(config, {.name = "gpt-oss",
                                    .kv_heads = 8,
                                    .head_dim = 64,
                                    .context = 131072,
                                    .epsilon = 1e-5,
                                    .needs_output = true,
                                    .rope = {150000, 1}});
  config.require(config.flag("attention_bias", true), "attention_bias", "has biases in its attention");
  made.rope_scaling_keys();
  state_scaling(made);
  made.expert_keys("num_local_experts", 128, 4);
  const std::uint32_t width = made.count("expert_feed_forward_length", "intermediate_size");
  made.count("attention.sliding_window", "sliding_window", 128);
  made.window_pattern([](std::int64_t layer) { return layer % 2 == 0; });
  made.layer("input_layernorm", "attn_norm");
  made.attention_names(/*paired=*/false, /*output_bias=*/true);
  made.layer("self_attn.sinks", "attn_sinks.weight");
  made.layer("post_attention_layernorm", "post_attention_norm");
  made.layer_with_bias("mlp.router", "ffn_gate_inp");
  for (const std::string part : {"gate", "up", "down"})
    made.layer_with_bias("mlp.experts.#." + part + "_proj", "ffn_" + part + "_exps");
  stacked_names(made, width);
  return made.take();
}

}  // namespace layerpress::gguf
