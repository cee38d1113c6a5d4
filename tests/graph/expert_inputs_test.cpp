#include "layerpress/graph/facts/expert_inputs.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "layerpress/graph/stages.h"
#include "layerpress/graph/text.h"
#include "layerpress/graph/tracer.h"
#include "tests/graph/module_kinds.h"

namespace layerpress::graph {
namespace {

constexpr std::int64_t kExperts = 3;

/// One layer of experts between an embedding and a head.
Graph mixture() {
  Tracer tracer;
  Symbol x = tracer.embedding("embed", tracer.tokens(), 50, 16);
  {
    const auto layer = tracer.module("layers.0", "Layer");
    const Symbol input = tracer.rms_norm("norm", "Norm", x, 1e-6);
    const Symbol logits = tracer.linear("gate", input, kExperts, {.bias = false, .class_name = "Router"});
    Route route;
    route.experts = kExperts;
    route.top_k = 1;
    const Symbol routed =
        tracer.experts("experts", input, logits, tracer.route(logits, route), 8, "silu", {.class_name = "Mlp"});
    x = tracer.add(x, routed);
  }
  return tracer.finish(tracer.linear("head", x, 50));
}

std::vector<LinearGroup> expert_groups(const Graph& graph, const Subgraph& subgraph) {
  return linear_groups(graph, subgraph,
                       [&](const Node& node) { return graph.modules[node.module].class_name == "Linear"; });
}

TEST(ExpertInputs, EveryExpertHasItsOwnUnlessAllTokensGoToAll) {
  const Graph routed = mixture();
  const auto apart = expert_groups(routed, partition(routed, is_layer)[1]);
  EXPECT_EQ(apart.size(), 2u * kExperts);
  for (const LinearGroup& group : apart) EXPECT_EQ(routed.values[group.input].rows, Rows::kSelected);

  const Graph all = without_selection(routed);
  const auto together = expert_groups(all, partition(all, is_layer)[1]);
  ASSERT_EQ(together.size(), 1u + kExperts);
  EXPECT_EQ(together[0].linears.size(), 2u * kExperts);  // gate and up of all experts read one value
  for (const LinearGroup& group : together) EXPECT_EQ(all.values[group.input].rows, Rows::kTokens);
  EXPECT_EQ(all.nodes.size(), routed.nodes.size() - kExperts);
}

TEST(ExpertInputs, WhatOnlyRoutersReadWeighsToo) {
  Tracer tracer;
  const Symbol x = tracer.embedding("embed", tracer.tokens(), 50, 16), shared = tracer.linear("shared", x, 16);
  const Symbol inner = tracer.linear("gate.down", shared, 8);
  const Symbol logits = tracer.linear("gate.out", tracer.rms_norm("gate.norm", "Norm", inner, 1e-6), kExperts);
  Route route;
  route.experts = kExperts;
  route.top_k = 1;
  const Symbol routed =
      tracer.experts("experts", shared, logits, tracer.route(logits, route), 8, "silu", {.class_name = "Mlp"});
  const Graph graph = tracer.finish(tracer.linear("score", routed, 1));
  std::set<std::string> names;
  for (const NodeId node : weighing_linears(graph)) names.insert(graph.module_name(graph.nodes[node]));
  EXPECT_EQ(names, (std::set<std::string>{"gate.down", "gate.out", "score"}));
}

TEST(ExpertInputs, NamesStay) {
  for (const Graph& graph : {mixture(), without_selection(mixture())})
    EXPECT_NE(to_text(graph).find("layers.0.experts.2.down_proj"), std::string::npos);
}

TEST(ExpertInputs, SelectionIsFoundFromWhatFollowsIt) {
  const Graph graph = mixture();
  for (const LinearGroup& group : expert_groups(graph, partition(graph, is_layer)[1])) {
    const std::string name = graph.module_name(graph.nodes[group.linears[0]]);
    const std::int64_t expert = std::get<SelectTokens>(selection_of(graph, group.input).operation).expert;
    EXPECT_NE(name.find(fmt::format("experts.{}.", expert)), std::string::npos);
  }
}

TEST(ExpertInputs, TheModelsOutputNeedsNoCalibration) {
  const Graph graph = mixture();
  const std::vector<bool> needed = needed_nodes(graph, {graph.output});
  for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
    const bool calibrates = graph.module_name(graph.nodes[n]).find("down_proj") != std::string::npos;
    EXPECT_EQ(needed[n], !calibrates) << kind_name(graph.nodes[n].operation);
  }
}

/// Groups that do not depend on each other, in the order in which they can be compressed.
std::vector<std::vector<LinearGroup>> by_level(const Graph& graph, const Subgraph& subgraph,
                                               const std::vector<LinearGroup>& groups) {
  const std::map<ValueId, std::size_t> level = compression_levels(graph, subgraph, groups);
  std::vector<std::vector<LinearGroup>> levels;
  for (const LinearGroup& group : groups) {
    const auto found = level.find(group.input);
    const std::size_t own = found == level.end() ? 0 : found->second;
    if (levels.size() <= own) levels.resize(own + 1);
    levels[own].push_back(group);
  }
  std::erase_if(levels, [](const auto& entry) { return entry.empty(); });
  return levels;
}

TEST(CompressionLevels, ExpertsDoNotWaitForEachOther) {
  for (const Graph& graph : {mixture(), without_selection(mixture())}) {
    const Subgraph layer = partition(graph, is_layer)[1];
    const auto levels = by_level(graph, layer, expert_groups(graph, layer));
    ASSERT_EQ(levels.size(), 2u);
    EXPECT_EQ(levels[1].size(), static_cast<std::size_t>(kExperts));
  }
}

/// Stages of a layer of experts, one per level.
std::vector<Stage> stages_of(const Graph& graph, const std::vector<bool>& keep_after = {}) {
  const Subgraph layer = partition(graph, is_layer)[1];
  std::vector<std::vector<ValueId>> wanted;
  for (const auto& level : by_level(graph, layer, expert_groups(graph, layer))) {
    wanted.emplace_back();
    for (const LinearGroup& group : level) wanted.back().push_back(group.input);
  }
  return split_stages(graph, layer, wanted, {graph.nodes[layer.nodes.back()].output}, keep_after);
}

TEST(Stages, DoNotKeepSelectedTokens) {
  const Graph graph = mixture();
  const auto stages = stages_of(graph);
  ASSERT_EQ(stages.size(), 3u);
  EXPECT_EQ(stages[0].wanted.size(), static_cast<std::size_t>(kExperts));
  for (const Stage& stage : stages)
    for (const ValueId value : stage.keeps)
      EXPECT_FALSE(std::holds_alternative<SelectTokens>(graph.nodes[graph.values[value].producer].operation));
}

template <typename Operation>
std::size_t count_of(const Graph& graph, const std::vector<NodeId>& nodes) {
  return static_cast<std::size_t>(std::count_if(nodes.begin(), nodes.end(), [&](NodeId n) {
    return std::holds_alternative<Operation>(graph.nodes[n].operation);
  }));
}

TEST(Stages, KeepRoutedRowsOfWhatExpertsGive) {
  for (const Graph& graph : {mixture(), without_selection(mixture())}) {
    const auto kept = stages_of(graph);
    ASSERT_EQ(kept.size(), 3u);
    EXPECT_EQ(count_of<TakeRouted>(graph, kept[1].nodes), static_cast<std::size_t>(kExperts));
    for (const ValueId value : kept[1].keeps)
      EXPECT_FALSE(std::holds_alternative<GatedActivation>(graph.nodes[graph.values[value].producer].operation));
    EXPECT_EQ(count_of<GatedActivation>(graph, kept[2].nodes), 0u);
    EXPECT_EQ(count_of<Expert>(graph, kept[2].nodes), static_cast<std::size_t>(kExperts));
  }
}

TEST(Stages, ComputeRoutedRowsAgainWhereNothingIsKept) {
  const Graph graph = without_selection(mixture());
  const auto again = stages_of(graph, {false, false});
  ASSERT_EQ(again.size(), 3u);
  EXPECT_EQ(count_of<TakeRouted>(graph, again[1].nodes), 0u);
  EXPECT_TRUE(again[1].keeps.empty());
  EXPECT_EQ(count_of<TakeRouted>(graph, again[2].nodes), static_cast<std::size_t>(kExperts));
  EXPECT_EQ(count_of<GatedActivation>(graph, again[2].nodes), static_cast<std::size_t>(kExperts));
}

}  // namespace
}  // namespace layerpress::graph
