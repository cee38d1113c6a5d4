#pragma once

#include <ATen/ATen.h>

#include <memory>
#include <string>
#include <utility>

#include "layerpress/recipe/recipe_of_options.h"
#include "layerpress/setup/run_setup.h"
#include "tests/setup/zero_model.h"

namespace layerpress::setup {

/// A Llama of two layers of 96 features.
inline Json small_llama() {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"model_type", "llama"},
          {"hidden_size", 96},
          {"intermediate_size", 128},
          {"num_hidden_layers", 2},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"vocab_size", 160},
          {"tie_word_embeddings", true}};
}

/// A mixture of experts beside a shared one that has a gate.
inline Json small_mixture() {
  Json config = small_llama();
  config["architectures"] = {"Qwen2MoeForCausalLM"};
  config["model_type"] = "qwen2_moe";
  config.update({{"num_experts", 4},
                 {"num_experts_per_tok", 2},
                 {"moe_intermediate_size", 64},
                 {"shared_expert_intermediate_size", 64},
                 {"decoder_sparse_step", 1}});
  return config;
}

/// A setup up to the assignments.
class SmallRun {
 public:
  explicit SmallRun(const Json& config) {
    setup.model = open_zero_model(folder_, config);
    setup.target = target::compressed_tensors_target();
  }

  void assign_by(const OneshotOptions& options) {
    setup.modifiers = make_modifiers(recipe::recipe_of(options));
    setup.assignments = assign(setup.model, setup.modifiers, *setup.target);
  }

  RunSetup setup;

 private:
  test::TemporaryFolder folder_;
};

/// Of a recipe with one QuantizationModifier.
inline OneshotOptions with_recipe(const Json& arguments) {
  OneshotOptions options;
  options.recipe = Json{{"a_stage", {{"a_modifiers", {{"QuantizationModifier", arguments}}}}}}.dump();
  return options;
}

}  // namespace layerpress::setup
