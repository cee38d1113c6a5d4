#include "layerpress/schedule/trial_stages.h"

#include <gtest/gtest.h>

#include "layerpress/graph/tracer.h"

namespace layerpress::schedule {
namespace {

/// A layer with two attention heads and a gated MLP.
graph::Graph layer() {
  graph::Tracer tracer;
  graph::Symbol x = tracer.embedding("embed", tracer.tokens(), 10, 8);
  {
    const graph::Symbol h = tracer.rms_norm("norm1", "Norm", x, 1e-5);
    const auto scope = tracer.module("attn", "Attention");
    const graph::Symbol q = tracer.linear("q", h, 8), k = tracer.linear("k", h, 8), v = tracer.linear("v", h, 8);
    x = tracer.add(x, tracer.linear("o", tracer.attention(q, k, v, {2, 2, 4, 0.5, 0}), 8));
  }
  const graph::Symbol h = tracer.rms_norm("norm2", "Norm", x, 1e-5);
  {
    const auto scope = tracer.module("mlp", "Mlp");
    const auto list = tracer.module("parts", "ModuleList");
    const graph::Symbol gate = tracer.linear("gate", h, 12), up = tracer.linear("up", h, 12);
    x = tracer.add(x, tracer.linear("down", tracer.gated_activation("silu", gate, up), 8));
  }
  return tracer.finish(tracer.linear("head", x, 10));
}

graph::Subgraph whole(const graph::Graph& graph) {
  graph::Subgraph all;
  for (std::size_t n = 0; n < graph.nodes.size(); ++n) all.nodes.push_back(static_cast<graph::NodeId>(n));
  return all;
}

graph::NodeId node(const graph::Graph& graph, const std::string& module) {
  for (std::size_t n = 0; n < graph.nodes.size(); ++n)
    if (graph.module_name(graph.nodes[n]) == module) return static_cast<graph::NodeId>(n);
  return -1;
}

graph::ValueId output(const graph::Graph& graph, const std::string& module) {
  return graph.nodes[node(graph, module)].output;
}

std::vector<graph::NodeId> nodes(const graph::Graph& graph, const std::vector<std::string>& modules) {
  std::vector<graph::NodeId> found;
  for (const std::string& module : modules) found.push_back(node(graph, module));
  return found;
}

compression::TransformSite site(const graph::Graph& graph, const std::vector<graph::NodeId>& balanced) {
  return {.place = {}, .balanced = balanced, .trial_outputs = trial_outputs(graph, graph.consumers(), balanced)};
}

/// "module module".
std::string names(const graph::Graph& graph, const std::vector<graph::NodeId>& of) {
  std::string text;
  for (const graph::NodeId n : of) text += (text.empty() ? "" : " ") + graph.module_name(graph.nodes[n]);
  return text;
}

TEST(TrialStages, EndWithTheModuleAroundTheBalancedReaders) {
  const graph::Graph graph = layer();
  std::vector<bool> stored(graph.values.size(), false);
  stored[output(graph, "embed")] = true;
  const std::vector<graph::NodeId> balanced = nodes(graph, {"attn.q", "attn.k", "attn.v"});
  const TrialStages stages = trial_stages(graph, whole(graph), 3, site(graph, balanced), stored);
  EXPECT_EQ(stages.transform, 3u);
  EXPECT_EQ(names(graph, stages.before.nodes), "norm1");
  EXPECT_EQ(stages.before.inputs, std::vector<graph::ValueId>{output(graph, "embed")});
  EXPECT_EQ(stages.before.keeps, std::vector<graph::ValueId>{output(graph, "norm1")});
  EXPECT_EQ(stages.tried.inputs, (std::vector<graph::ValueId>{output(graph, "norm1"), output(graph, "embed")}));
  // Here the sum with the residual stream is the module's.
  EXPECT_EQ(stages.tried.keeps, trial_outputs(graph, graph.consumers(), balanced));
  EXPECT_EQ(names(graph, {graph.values[stages.tried.keeps.at(0)].producer}).substr(0, 4), "attn");
  EXPECT_EQ(names(graph, stages.tried.nodes).substr(0, 20), "attn.q attn.k attn.v");
}

TEST(TrialStages, GoThroughListsOfModules) {
  const graph::Graph graph = layer();
  const std::vector<graph::ValueId> outputs =
      trial_outputs(graph, graph.consumers(), nodes(graph, {"mlp.parts.gate", "mlp.parts.up"}));
  ASSERT_EQ(outputs.size(), 1u);
  EXPECT_EQ(graph.nodes[node(graph, "head")].inputs[0], outputs[0]);
}

TEST(TrialStages, OfOneReaderEndWithItsOutput) {
  const graph::Graph graph = layer();
  std::vector<bool> stored(graph.values.size(), false);
  stored[graph.nodes[node(graph, "mlp.parts.down")].inputs[0]] = true;
  const std::vector<graph::NodeId> balanced = nodes(graph, {"mlp.parts.down"});
  const TrialStages stages = trial_stages(graph, whole(graph), 0, site(graph, balanced), stored);
  EXPECT_TRUE(stages.before.nodes.empty());
  EXPECT_EQ(names(graph, stages.tried.nodes), "mlp.parts.down");
  EXPECT_EQ(stages.tried.keeps, std::vector<graph::ValueId>{output(graph, "mlp.parts.down")});
}

TEST(TrialStages, DoNotTakeValuesThatDependOnTriedParametersFromTheStore) {
  const graph::Graph graph = layer();
  const std::vector<bool> stored(graph.values.size(), true);
  const std::vector<graph::NodeId> balanced = nodes(graph, {"mlp.parts.gate", "mlp.parts.up"});
  const TrialStages stages = trial_stages(graph, whole(graph), 0, site(graph, balanced), stored);
  EXPECT_TRUE(stages.before.nodes.empty());
  EXPECT_NE(names(graph, stages.tried.nodes).find("mlp.parts.down"), std::string::npos);
}

}  // namespace
}  // namespace layerpress::schedule
