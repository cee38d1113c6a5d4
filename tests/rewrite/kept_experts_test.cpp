#include "layerpress/rewrite/kept_experts.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "layerpress/base/text.h"

namespace layerpress::rewrite {
namespace {

const Json kConfig = {{"model_type", "deepseek_v3"},
                      {"hidden_size", 32},
                      {"intermediate_size", 48},
                      {"num_hidden_layers", 3},
                      {"num_attention_heads", 4},
                      {"num_key_value_heads", 4},
                      {"vocab_size", 20},
                      {"num_experts_per_tok", 1},
                      {"moe_intermediate_size", 12},
                      {"qk_nope_head_dim", 8},
                      {"qk_rope_head_dim", 8},
                      {"v_head_dim", 8},
                      {"kv_lora_rank", 16},
                      {"q_lora_rank", nullptr},
                      {"first_k_dense_replace", 1},
                      {"n_group", 1},
                      {"topk_group", 1},
                      {"n_routed_experts", 6},
                      {"num_nextn_predict_layers", 1}};

/// With values that tell tensors apart, and a layer for multi-token prediction.
Model mixture() {
  Model model;
  model.traced = model::trace_model(kConfig);
  std::map<std::string, at::Tensor> tensors;
  double number = 0;
  for (const graph::Node& node : model.traced.graph.nodes)
    for (const graph::WeightUse& use : graph::weights_of(node.operation)) {
      at::Tensor values = at::arange(c10::multiply_integers(use.shape), at::kFloat).reshape(use.shape);
      tensors[use.name] = values + 1000 * ++number;
    }
  for (const char* name : {"model.layers.3.mlp.experts.5.up_proj.weight", "model.layers.3.eh_proj.weight"})
    tensors[name] = at::ones({2, 2});
  model.checkpoint = checkpoint::Checkpoint::in_memory(kConfig, tensors);
  model.trace = [](const checkpoint::Checkpoint& changed) { return model::trace_model(changed.config()); };
  return model;
}

TEST(KeepExperts, NumbersThemAnew) {
  const Model model = mixture();
  const ExpertMixture found = expert_mixture(model, "here");
  EXPECT_EQ(found.layers, (std::vector<std::string>{"model.layers.1.mlp", "model.layers.2.mlp"}));
  EXPECT_EQ(found.experts, 6);
  EXPECT_EQ(found.top_k, 1);
  const KeptExperts kept = {{"model.layers.1.mlp", {1, 2, 5}}, {"model.layers.2.mlp", {0, 3, 4}}};
  const Model changed = rewritten(model, keep_experts(model, kept, "here"));
  EXPECT_EQ(changed.checkpoint->config()["n_routed_experts"], 3);
  EXPECT_EQ(changed.checkpoint->config()["num_experts_per_tok"], 1);
  for (const auto& [layer, experts] : kept) {
    for (std::size_t place = 0; place < experts.size(); ++place)
      for (const char* linear : {"gate_proj", "up_proj", "down_proj"}) {
        const auto name = [linear, &layer = layer](std::int64_t e) {
          return fmt::format("{}.experts.{}.{}.weight", layer, e, linear);
        };
        EXPECT_TRUE(at::equal(changed.checkpoint->tensor(name(static_cast<std::int64_t>(place))),
                              model.checkpoint->tensor(name(experts[place]))));
      }
    const at::Tensor rows = at::tensor(experts);
    for (const std::string& router : {layer + ".gate.weight", layer + ".gate.e_score_correction_bias"})
      EXPECT_TRUE(at::equal(changed.checkpoint->tensor(router), model.checkpoint->tensor(router).index_select(0, rows)))
          << router;
  }
  EXPECT_EQ(expert_mixture(changed, "here").experts, 3);
}

/// Nothing of the experts that went is left, and nothing else is lost.
TEST(KeepExperts, LeavesOutWhatNobodyMeasured) {
  const Model model = mixture();
  const Model changed =
      rewritten(model, keep_experts(model, {{"model.layers.1.mlp", {4, 5}}, {"model.layers.2.mlp", {0, 1}}}, "here"));
  for (const std::string& name : model.checkpoint->names()) {
    const bool gone = name.starts_with("model.layers.3.") ||
                      (name.find(".experts.") != std::string::npos && last_part(parent_name(parent_name(name))) >= "2");
    EXPECT_EQ(changed.checkpoint->contains(name), !gone) << name;
  }
  EXPECT_EQ(changed.checkpoint->config()["num_nextn_predict_layers"], 0);
}

std::string refusal(const Model& model) {
  try {
    (void)keep_experts(model, {{"model.layers.1.mlp", {4, 5}}, {"model.layers.2.mlp", {0, 1}}}, "here");
  } catch (const RecipeError& error) {
    return error.what();
  }
  return "";
}

TEST(KeepExperts, RefusesWhatItDoesNotUnderstand) {
  Model model = mixture();
  EXPECT_EQ(refusal(model), "");
  model.traced.left_out = {"model.layers.2.mlp.experts"};
  EXPECT_NE(refusal(model).find("model.layers.2.mlp.experts is not a node"), std::string::npos);
  model = mixture();
  model.checkpoint = model.checkpoint->with_config({{"n_routed_experts", 7}});
  EXPECT_NE(refusal(model).find("no number of config.json counts the 6 experts"), std::string::npos);
  model = mixture();
  model.checkpoint = model.checkpoint->with_copies({{"vision.experts.1.weight", "model.layers.3.eh_proj.weight"}});
  EXPECT_NE(refusal(model).find("vision.experts.1.weight"), std::string::npos);
  Json dense = kConfig;
  dense["first_k_dense_replace"] = 3;
  model.traced = model::trace_model(dense);
  EXPECT_NE(refusal(model).find("no mixture of experts"), std::string::npos);
}

}  // namespace
}  // namespace layerpress::rewrite
