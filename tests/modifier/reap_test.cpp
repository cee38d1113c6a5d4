#include "layerpress/modifier/pruning/reap.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "layerpress/model/blocks/architecture.h"
#include "layerpress/modifier/all_modifiers.h"

namespace layerpress::modifier {
namespace {

/// Removes the worst expert of each group, one at a time.
std::vector<std::int64_t> plain_kept_experts(const std::vector<double>& saliency, std::int64_t groups,
                                             std::int64_t dropped) {
  const auto size = static_cast<std::int64_t>(saliency.size()) / groups;
  std::set<std::int64_t> kept;
  for (std::int64_t group = 0; group < groups; ++group) {
    std::set<std::int64_t> own;
    for (std::int64_t e = group * size; e < (group + 1) * size; ++e) own.insert(e);
    for (std::int64_t i = 0; i < dropped; ++i) {
      std::int64_t worst = *own.begin();
      for (const std::int64_t e : own)
        if (saliency[static_cast<std::size_t>(e)] <= saliency[static_cast<std::size_t>(worst)]) worst = e;
      own.erase(worst);
    }
    kept.insert(own.begin(), own.end());
  }
  return {kept.begin(), kept.end()};
}

/// Removes the worst expert of all layers, one at a time.
std::vector<std::vector<std::int64_t>> plain_kept_over_layers(const std::vector<std::vector<double>>& saliency,
                                                              std::int64_t dropped, std::int64_t least) {
  std::vector<std::set<std::int64_t>> kept(saliency.size());
  for (std::size_t layer = 0; layer < saliency.size(); ++layer)
    for (std::size_t e = 0; e < saliency[layer].size(); ++e) kept[layer].insert(static_cast<std::int64_t>(e));
  const auto score = [&](std::size_t layer, std::int64_t e) {
    const double greatest = *std::max_element(saliency[layer].begin(), saliency[layer].end());
    return greatest > 0 ? saliency[layer][static_cast<std::size_t>(e)] / greatest : 0;
  };
  for (std::int64_t i = 0; i < dropped; ++i) {
    std::size_t worst_layer = 0;
    std::int64_t worst = -1;
    for (std::size_t layer = 0; layer < kept.size(); ++layer)
      for (const std::int64_t e : kept[layer]) {
        if (static_cast<std::int64_t>(kept[layer].size()) <= least) continue;
        const bool lower = worst < 0 || score(layer, e) < score(worst_layer, worst);
        if (lower || (score(layer, e) == score(worst_layer, worst) && e >= worst)) worst_layer = layer, worst = e;
      }
    kept[worst_layer].erase(worst);
  }
  std::vector<std::vector<std::int64_t>> lists;
  for (const std::set<std::int64_t>& own : kept) lists.emplace_back(own.begin(), own.end());
  return lists;
}

TEST(KeptExperts, AreThoseThatThePlainVersionLeaves) {
  std::mt19937 dice(3);  // NOLINT(cert-msc32-c,cert-msc51-cpp): the same numbers in every run
  for (const std::int64_t groups : {1, 2, 4})
    for (const std::int64_t dropped : {1, 2, 3})
      for (const int levels : {2, 5, 1000}) {
        std::vector<double> saliency(16);
        for (double& own : saliency) own = static_cast<double>(dice() % levels);
        EXPECT_EQ(kept_experts(saliency, groups, dropped), plain_kept_experts(saliency, groups, dropped));
      }
  EXPECT_EQ(kept_experts({3, 1, 2, 0}, 1, 2), (std::vector<std::int64_t>{0, 2}));
  EXPECT_EQ(kept_experts({3, 4, 2, 0}, 2, 1), (std::vector<std::int64_t>{1, 2}));
}

TEST(KeptExperts, OverLayersAreThoseThatThePlainVersionLeaves) {
  std::mt19937 dice(5);  // NOLINT(cert-msc32-c,cert-msc51-cpp): the same numbers in every run
  for (const std::int64_t least : {1, 3})
    for (const std::int64_t dropped : {1, 5, 9, 15})
      for (const int levels : {1, 3, 1000}) {
        std::vector<std::vector<double>> saliency(3, std::vector<double>(8));
        for (std::vector<double>& layer : saliency)
          for (double& own : layer) own = static_cast<double>(dice() % levels);
        EXPECT_EQ(kept_over_layers(saliency, dropped, least), plain_kept_over_layers(saliency, dropped, least));
      }
  // The second layer's are ten times as large, which says nothing about its worth.
  EXPECT_EQ(kept_over_layers({{4, 3, 1}, {10, 40, 20}}, 2, 1),
            (std::vector<std::vector<std::int64_t>>{{0, 1}, {1, 2}}));
}

TEST(ExpertFigures, WithoutTokensAreZero) {
  EXPECT_EQ(ExpertFigures{}.saliency(), 0);
  EXPECT_EQ((ExpertFigures{6, 4}.saliency()), 1.5);
}

rewrite::Model mixture(const Json& more) {
  Json config = {{"model_type", "deepseek_v3"},
                 {"hidden_size", 64},
                 {"intermediate_size", 96},
                 {"num_hidden_layers", 2},
                 {"num_attention_heads", 4},
                 {"num_key_value_heads", 4},
                 {"vocab_size", 100},
                 {"num_experts_per_tok", 2},
                 {"moe_intermediate_size", 32},
                 {"qk_nope_head_dim", 16},
                 {"qk_rope_head_dim", 16},
                 {"v_head_dim", 16},
                 {"kv_lora_rank", 32},
                 {"q_lora_rank", nullptr},
                 {"first_k_dense_replace", 1},
                 {"n_group", 1},
                 {"topk_group", 1},
                 {"n_routed_experts", 8}};
  config.update(more);
  rewrite::Model model;
  model.traced = model::trace_model(config);
  model.checkpoint = checkpoint::Checkpoint::in_memory(config, {{"a", at::ones({1})}});
  return model;
}

std::string refusal(const Json& arguments, const Json& config = Json::object()) {
  try {
    (void)ExpertPruning(arguments, "here").mixture_of(mixture(config));
  } catch (const RecipeError& error) {
    return error.what();
  }
  return "";
}

TEST(ExpertPruning, RefusesArgumentsByName) {
  EXPECT_EQ(refusal({{"sparsity", 0.5}}), "");
  EXPECT_NE(refusal(Json::object()).find("sparsity is missing"), std::string::npos);
  for (const double part : {0.0, 1.0, -0.5, 1.5})
    EXPECT_NE(refusal({{"sparsity", part}}).find("between 0 and 1"), std::string::npos) << part;
  EXPECT_NE(refusal({{"sparsity", 0.1}}).find("removes none of the 8 experts"), std::string::npos);
  EXPECT_NE(refusal({{"sparsity", 0.9}}).find("but the model needs 2 there"), std::string::npos);
  EXPECT_EQ(refusal({{"sparsity", 0.5}, {"uniform", false}}), "");
  EXPECT_NE(refusal({{"sparsity", 0.9}, {"uniform", false}}).find("removes 7 experts, but at most 6 can go"),
            std::string::npos);
  EXPECT_NE(refusal({{"sparsity", 0.1}, {"uniform", false}}).find("removes none of the 8 experts"), std::string::npos);
  EXPECT_NE(refusal({{"sparsity", 0.5}, {"uniform", false}}, {{"n_group", 2}, {"topk_group", 1}}).find("in groups"),
            std::string::npos);
  EXPECT_NE(refusal({{"sparsity", 0.5}, {"report_path", "kept.txt"}}).find(".json"), std::string::npos);
  EXPECT_NE(refusal({{"sparsity", 0.5}, {"ignore", {"layers.1"}}}).find("model.layers.1.mlp"), std::string::npos);
  EXPECT_EQ(refusal({{"sparsity", 0.5}, {"ignore", {"layers.0"}}}), "");  // has no experts
  EXPECT_NE(refusal({{"sparsity", 0.5}, {"kept_experts", {{"a", {3, 1}}}}}).find("kept_experts of a"),
            std::string::npos);
}

/// Half of a group's experts are removed if half of all are: int(8 * 0.4) = 3 of all is round(1.5) = 2 of each half.
TEST(ExpertPruning, RemovesEquallyManyOfEachGroup) {
  const rewrite::Model model = mixture({{"n_group", 2}, {"topk_group", 2}});
  const ExpertPruning pruning({{"sparsity", 0.4}}, "here");
  const rewrite::ExpertMixture found = pruning.mixture_of(model);
  EXPECT_EQ(found.layers, (std::vector<std::string>{"model.layers.1.mlp"}));
  std::vector<ExpertFigures> figures;
  for (const double sum : {8, 7, 6, 5, 4, 3, 2, 1}) figures.push_back({sum, 1});
  EXPECT_EQ(pruning.choose(found, figures), (std::vector<std::int64_t>{0, 1, 4, 5}));
  // Two groups of 4, of which one is looked at: 2 are left there, which is enough for a token.
  EXPECT_EQ(refusal({{"sparsity", 0.5}}, {{"n_group", 2}, {"topk_group", 1}}), "");
  EXPECT_NE(refusal({{"sparsity", 0.75}}, {{"n_group", 2}, {"topk_group", 2}}).find("leaves 1 experts of each"),
            std::string::npos);  // a group's score is the sum of its best two
  EXPECT_NE(refusal({{"sparsity", 0.5}}, {{"n_group", 2}, {"topk_group", 1}, {"num_experts_per_tok", 3}})
                .find("leaves 2 experts that a token can reach"),
            std::string::npos);
  EXPECT_NE(refusal({{"sparsity", 0.125}}, {{"n_group", 2}, {"topk_group", 2}}).find("of each of the 2 groups"),
            std::string::npos);
}

TEST(ExpertPruning, ADecisionTakesNoData) {
  OrderedJson arguments = {{"sparsity", 0.5}};
  EXPECT_TRUE(make_modifier("REAPPruningModifier", arguments, "here")->needs_data());
  arguments["kept_experts"] = ExpertPruning::report({{"model.layers.10.mlp", {0, 2}}, {"model.layers.9.mlp", {1, 3}}});
  EXPECT_FALSE(make_modifier("REAPPruningModifier", arguments, "here")->needs_data());
  EXPECT_EQ(arguments["kept_experts"].dump(), R"({"model.layers.9.mlp":[1,3],"model.layers.10.mlp":[0,2]})");
}

}  // namespace
}  // namespace layerpress::modifier
