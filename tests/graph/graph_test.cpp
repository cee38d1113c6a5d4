#include "layerpress/graph/graph.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "layerpress/base/error.h"
#include "layerpress/graph/partition.h"
#include "layerpress/graph/stages.h"
#include "layerpress/graph/text.h"
#include "layerpress/graph/tracer.h"
#include "tests/graph/module_kinds.h"

namespace layerpress::graph {
namespace {

/// Two small decoder layers between an embedding and a head.
Graph small_model() {
  Tracer tracer;
  RopeTable rope;
  rope.inverse_frequencies = {1.0, 0.1};
  tracer.add_rope_table(rope);
  Symbol x = tracer.embedding("embed", tracer.tokens(), 100, 16);
  for (int layer = 0; layer < 2; ++layer) {
    const auto scope = tracer.module(fmt::format("layers.{}", layer), "Layer");
    const Symbol h = tracer.rms_norm("norm", "Norm", x, 1e-5);
    const Symbol q = tracer.rotary(tracer.linear("q", h, 16), 4, 0);
    const Symbol k = tracer.rotary(tracer.linear("k", h, 8), 4, 0);
    const Symbol v = tracer.linear("v", h, 8, {.bias = true, .tied_weight = ""});
    x = tracer.add(x, tracer.linear("o", tracer.attention(q, k, v, {4, 2, 4, 0.5, 0}), 16));
  }
  x = tracer.rms_norm("norm", "Norm", x, 1e-5);
  return tracer.finish(tracer.linear("head", x, 100));
}

TEST(Tracer, NamesModulesAndWeights) {
  const Graph graph = small_model();
  const Node& first = graph.nodes.at(2);
  EXPECT_EQ(graph.module_name(first), "layers.0.q");
  EXPECT_EQ(std::get<Linear>(first.operation).weight, "layers.0.q.weight");
  EXPECT_EQ(graph.modules.at(graph.modules.at(first.module).parent).class_name, "Layer");
  EXPECT_EQ(graph.modules.at(graph.nodes.back().module).name, "head");
}

TEST(Text, HasValuesAndAttributes) {
  const std::string text = to_text(small_model());
  EXPECT_NE(text.find(R"(%3 [16] = linear(%2) {"weight":"layers.0.q.weight")"), std::string::npos) << text;
}

TEST(Lint, FindsBrokenInvariants) {
  const auto broken = [](const std::function<void(Graph&)>& change) {
    Graph graph = small_model();
    change(graph);
    EXPECT_THROW(lint(graph), InternalError);
  };
  broken([](Graph& g) { std::swap(g.nodes[1], g.nodes[2]); });
  broken([](Graph& g) { g.nodes[2].inputs[0] = 1000; });
  broken([](Graph& g) { g.nodes[3].output = g.nodes[2].output; });
  broken([](Graph& g) { g.values[3].features = 17; });
  broken([](Graph& g) { std::get<Linear>(g.nodes[2].operation).in_features = 8; });
  broken([](Graph& g) { g.rope_tables.clear(); });
  broken([](Graph& g) { g.output = -1; });
  broken([](Graph& g) { g.nodes[2].module = 99; });
}

void expect_cover(const Graph& graph, const std::vector<Subgraph>& subgraphs) {
  std::vector<NodeId> all;
  for (const Subgraph& subgraph : subgraphs) all.insert(all.end(), subgraph.nodes.begin(), subgraph.nodes.end());
  ASSERT_EQ(all.size(), graph.nodes.size());
  for (std::size_t n = 0; n < all.size(); ++n) EXPECT_EQ(all[n], static_cast<NodeId>(n));

  std::vector<int> freed(graph.values.size(), 0);
  for (const Liveness& live : liveness(graph, subgraphs))
    for (const ValueId value : live.freed) ++freed[value];
  for (std::size_t v = 0; v < graph.values.size(); ++v)
    EXPECT_EQ(freed[v], static_cast<ValueId>(v) == graph.output ? 0 : 1) << "value " << v;
}

TEST(Partition, CutsAtLayers) {
  const Graph graph = small_model();
  const auto subgraphs = partition(graph, is_layer);
  ASSERT_EQ(subgraphs.size(), 4u);
  EXPECT_EQ(subgraphs[0].name, "head");
  EXPECT_EQ(subgraphs[1].name, "layers.0");
  EXPECT_EQ(subgraphs[3].name, "tail");
  expect_cover(graph, subgraphs);
  expect_cover(graph, partition(graph, is_layer, 2));
  EXPECT_EQ(partition(graph, is_layer, 2).size(), 3u);
}

TEST(Partition, CutsAtLinears) {
  const Graph graph = small_model();
  const auto subgraphs = partition(graph, is_linear);
  EXPECT_EQ(subgraphs.size(), 1u + 9u);
  expect_cover(graph, subgraphs);
}

TEST(Partition, WithoutTargetsIsOneSubgraph) {
  const Graph graph = small_model();
  const auto subgraphs = partition(graph, [](const Module&) { return false; });
  ASSERT_EQ(subgraphs.size(), 1u);
  EXPECT_EQ(subgraphs[0].name, "model");
  expect_cover(graph, subgraphs);
}

TEST(LinearGroups, ShareTheirInput) {
  const Graph graph = small_model();
  const auto subgraphs = partition(graph, is_layer);
  const auto groups = linear_groups(graph, subgraphs[1], [](const Node&) { return true; });
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_EQ(groups[0].linears.size(), 3u);
  EXPECT_EQ(groups[1].linears.size(), 1u);
}

/// A stage for each group's input.
std::vector<std::vector<ValueId>> inputs_of(const std::vector<LinearGroup>& groups) {
  std::vector<std::vector<ValueId>> inputs;
  for (const LinearGroup& group : groups) inputs.push_back({group.input});
  return inputs;
}

TEST(Stages, RunEveryNeededNodeOnceAndEveryLinearAfterItsGroup) {
  const Graph graph = small_model();
  const auto subgraphs = partition(graph, is_layer);
  const auto live = liveness(graph, subgraphs);
  const auto groups = linear_groups(graph, subgraphs[1], [](const Node&) { return true; });
  const auto stages = split_stages(graph, subgraphs[1], inputs_of(groups), live[1].outputs);
  ASSERT_EQ(stages.size(), 3u);
  std::vector<NodeId> all;
  for (std::size_t s = 0; s < stages.size(); ++s)
    for (const NodeId n : stages[s].nodes) {
      all.push_back(n);
      for (std::size_t g = s; g < groups.size(); ++g)
        EXPECT_EQ(std::count(groups[g].linears.begin(), groups[g].linears.end(), n), 0)
            << "node " << n << " runs before its group is compressed";
    }
  std::sort(all.begin(), all.end());
  for (const NodeId n : subgraphs[1].nodes) {
    const auto times = std::count(all.begin(), all.end(), n);
    EXPECT_TRUE(times == 1 || repeats_cheaply(graph.nodes[n].operation)) << n;
  }
  all.erase(std::unique(all.begin(), all.end()), all.end());
  EXPECT_EQ(all, subgraphs[1].nodes);
}

TEST(Stages, KeepWhatNormsReadInsteadOfWhatTheyCompute) {
  const Graph graph = small_model();
  const auto subgraphs = partition(graph, is_layer);
  const auto live = liveness(graph, subgraphs);
  const auto groups = linear_groups(graph, subgraphs[1], [](const Node&) { return true; });
  const auto stages = split_stages(graph, subgraphs[1], inputs_of(groups), live[1].outputs);
  const auto computes = [&](const Stage& stage, ValueId value) {
    return std::count(stage.nodes.begin(), stage.nodes.end(), graph.values[value].producer);
  };
  EXPECT_TRUE(stages[0].keeps.empty());  // it only norms the subgraph's input
  EXPECT_EQ(computes(stages[0], groups[0].input), 1);
  EXPECT_EQ(computes(stages[1], groups[0].input), 1);
  EXPECT_EQ(stages[1].inputs, stages[0].inputs);
}

TEST(Stages, LeaveOutWhatNothingNeeds) {
  const Graph graph = small_model();
  const auto subgraphs = partition(graph, is_layer);
  const auto groups = linear_groups(graph, subgraphs[2], [](const Node&) { return true; });
  const auto stages = split_stages(graph, subgraphs[2], inputs_of(groups), {});
  EXPECT_TRUE(stages.back().nodes.empty());
}

TEST(Stages, WithoutKeepingComputeEverythingAgain) {
  const Graph graph = small_model();
  const auto subgraphs = partition(graph, is_layer);
  const auto live = liveness(graph, subgraphs);
  const auto groups = linear_groups(graph, subgraphs[1], [](const Node&) { return true; });
  const auto kept = split_stages(graph, subgraphs[1], inputs_of(groups), live[1].outputs);
  const auto again = split_stages(graph, subgraphs[1], inputs_of(groups), live[1].outputs, {false, false});
  ASSERT_EQ(again.size(), kept.size());
  EXPECT_TRUE(again[0].keeps.empty());
  EXPECT_TRUE(again[1].keeps.empty());
  EXPECT_EQ(again[2].keeps, kept[2].keeps);
  EXPECT_EQ(again[2].nodes, subgraphs[1].nodes);  // all of them, from the subgraph's inputs
  EXPECT_EQ(again[2].inputs, live[1].inputs);
  EXPECT_EQ(again[0].nodes, kept[0].nodes);
  EXPECT_EQ(again[1].wanted, std::vector{groups[1].input});
}

TEST(NeededNodes, StopAtAvailableValues) {
  const Graph graph = small_model();
  const auto needed = needed_nodes(graph, {graph.nodes[2].output}, {graph.nodes[1].output});
  EXPECT_FALSE(needed[1]);
  EXPECT_TRUE(needed[2]);
}

TEST(NeededNodes, FollowsInputsBackwards) {
  const Graph graph = small_model();
  const auto needed = needed_nodes(graph, {graph.nodes[1].output});
  EXPECT_TRUE(needed[0]);
  EXPECT_TRUE(needed[1]);
  EXPECT_EQ(std::count(needed.begin(), needed.end(), true), 2);
}

TEST(RopeTable, ChangesWithLength) {
  RopeTable table;
  table.inverse_frequencies = {1.0, 0.01};
  table.original_length = 100;
  table.ntk_factor = 2;
  EXPECT_EQ(table.frequencies_for(100), table.inverse_frequencies);
  EXPECT_LT(table.frequencies_for(200)[1], 0.01);
  table.long_inverse_frequencies = {0.5, 0.001};
  EXPECT_EQ(table.frequencies_for(101), table.long_inverse_frequencies);
}

}  // namespace
}  // namespace layerpress::graph
