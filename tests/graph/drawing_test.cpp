#include "layerpress/graph/drawing/drawing.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <regex>

#include "layerpress/graph/facts/expert_inputs.h"
#include "layerpress/graph/folding.h"
#include "layerpress/graph/tracer.h"
#include "tests/graph/module_kinds.h"

namespace layerpress::graph {
namespace {

/// A layer named `name` whose attention has the given window.
Symbol layer(Tracer& tracer, const std::string& name, Symbol x, std::int64_t window) {
  const auto scope = tracer.module(name, "Layer");
  const Symbol h = tracer.rms_norm("norm", "Norm", x, 1e-5);
  Attention attention;
  attention.heads = 4, attention.kv_heads = 2, attention.head_dim = 4;
  attention.window = window;
  const Symbol q = tracer.linear("q", h, 16), k = tracer.linear("k", h, 8), v = tracer.linear("v", h, 8);
  return tracer.add(x, tracer.linear("o", tracer.attention(q, k, v, attention), 16));
}

/// An embedding, one layer per window, and a head. Names tell nothing.
Graph layered(const std::vector<std::int64_t>& windows) {
  Tracer tracer;
  Symbol x = tracer.embedding("embed", tracer.tokens(), 100, 16);
  for (std::size_t i = 0; i < windows.size(); ++i)
    x = layer(tracer, std::string(1, static_cast<char>('a' + (i * 7) % 26)), x, windows[i]);
  return tracer.finish(tracer.linear("head", x, 100));
}

Graph mixture(std::int64_t experts) {
  Tracer tracer;
  const Symbol x = tracer.embedding("embed", tracer.tokens(), 100, 16);
  const auto scope = tracer.module("layers.0", "Layer");
  const Symbol logits = tracer.linear("router", x, experts);
  Route route;
  route.experts = experts;
  route.top_k = 2;
  const Symbol routing = tracer.route(logits, route);
  return tracer.finish(tracer.experts("experts", x, logits, routing, 8, "silu", {"Mlp"}));
}

/// What is shown of the graph's subgraphs: "full", or "2x1 as 0" for two blocks, one at a time, alike block 0.
std::vector<std::string> folded_layers(const Graph& graph,
                                       const std::function<bool(const Module&)>& target = is_layer) {
  std::vector<std::vector<NodeId>> blocks;
  for (const Subgraph& subgraph : partition(graph, target)) blocks.push_back(subgraph.nodes);
  std::vector<std::string> shown;
  std::size_t next = 0;
  for (const Folded& piece : fold(graph, blocks, 1)) {
    EXPECT_EQ(piece.first, next);
    next += piece.count;
    shown.push_back(piece.period == 0 ? "full" : fmt::format("{}x{} as {}", piece.count, piece.period, piece.like));
  }
  EXPECT_EQ(next, blocks.size());
  return shown;
}

using Shown = std::vector<std::string>;

TEST(Folding, HidesLayersThatAreAlikeWhateverTheirNames) {
  EXPECT_EQ(folded_layers(layered({0, 0, 0, 0, 0})), (Shown{"full", "full", "4x1 as 1", "full"}));
}

TEST(Folding, ShowsEveryKindOnce) {
  EXPECT_EQ(folded_layers(layered({0, 0, 8, 0})), (Shown{"full", "full", "1x1 as 1", "full", "1x1 as 1", "full"}));
}

TEST(Folding, FindsPeriods) {
  EXPECT_EQ(folded_layers(layered({0, 0, 8, 0, 0, 8, 0, 0, 8, 0})),
            (Shown{"full", "full", "1x1 as 1", "full", "6x3 as 1", "1x1 as 1", "full"}));
}

TEST(Folding, AttributesCount) {
  Graph graph = layered({0, 0, 0});
  for (Node& node : graph.nodes)
    if (auto* norm = std::get_if<RmsNorm>(&node.operation); norm != nullptr && graph.module_name(node) == "h.norm")
      norm->epsilon = 1e-3;
  EXPECT_EQ(folded_layers(graph), (Shown{"full", "full", "full", "1x1 as 1", "full"}));
}

TEST(Folding, SharedWeightsCount) {
  Graph graph = layered({0, 0, 0});
  for (Node& node : graph.nodes)
    if (auto* linear = std::get_if<Linear>(&node.operation); linear != nullptr && linear->weight == "h.v.weight")
      linear->weight = "h.k.weight";
  EXPECT_EQ(folded_layers(graph), (Shown{"full", "full", "full", "1x1 as 1", "full"}));
}

/// Layers 1 and 2 as usual; layer 3 goes back to what layer 1 read: no repetition, though each has the same inside.
TEST(Folding, WiringBetweenBlocksCounts) {
  Tracer tracer;
  const Symbol start = tracer.embedding("embed", tracer.tokens(), 100, 16);
  const Symbol x = layer(tracer, "b", layer(tracer, "a", start, 0), 0);
  const Symbol again = layer(tracer, "c", start, 0);
  const Graph graph = tracer.finish(tracer.add(x, again));
  EXPECT_EQ(folded_layers(graph), (Shown{"full", "full", "1x1 as 1", "1x1 as 1", "full"}));
}

TEST(Folding, WorksOnAnyCut) {
  // Per layer q, k, v with the attention, and o with the sum and the next norm: four subgraphs.
  EXPECT_EQ(folded_layers(layered({0, 0, 0, 0}), is_linear),
            (Shown{"full", "full", "full", "full", "full", "8x4 as 1", "full", "full", "full", "full", "full"}));
}

std::string drawn(const Graph& graph, const std::function<bool(const Module&)>& target, bool full = false) {
  DrawingOptions options;
  options.title = "a <small> model";
  options.full = full;
  return to_dot(graph, partition(graph, target), options);
}

std::size_t count(const std::string& text, const std::string& pattern) {
  const std::regex regex(pattern);
  return std::distance(std::sregex_iterator(text.begin(), text.end(), regex), std::sregex_iterator());
}

TEST(Drawing, ShowsOneLayerInFullAndTheOthersAsOne) {
  const std::string dot = drawn(layered({0, 0, 0, 0}), is_layer);
  EXPECT_EQ(count(dot, "subgraph cluster_subgraph_"), 3u) << dot;  // head, the first layer, tail
  EXPECT_EQ(count(dot, "3 like a"), 1u) << dot;
  EXPECT_EQ(count(dot, "<B>attention</B>"), 1u) << dot;
  EXPECT_NE(dot.find("a &lt;small&gt; model"), std::string::npos) << dot;
}

TEST(Drawing, ShowsEverythingWhenAsked) {
  const Graph graph = layered({0, 0, 0, 0});
  const std::string dot = drawn(graph, is_layer, true);
  EXPECT_EQ(count(dot, "subgraph cluster_subgraph_"), 6u) << dot;
  EXPECT_EQ(count(dot, "PORT="), 17u) << dot;  // linears
  EXPECT_EQ(count(dot, "<B>attention</B>"), 4u) << dot;
  EXPECT_EQ(count(dot, " like "), 0u) << dot;
}

TEST(Drawing, LabelsEachValueThatCrossesACutOnce) {
  const std::string dot = drawn(layered({0, 0, 0}), is_layer, true);
  // Token ids, the residual stream between five subgraphs, and the output.
  EXPECT_EQ(count(dot, "\nvalue_[0-9]+ \\["), 6u) << dot;
  EXPECT_EQ(count(dot, "\\[tokens, 16\\]<BR/>32 B per token"), 4u) << dot;
  EXPECT_EQ(count(dot, "\\[tokens, 100\\]<BR/>200 B per token"), 1u) << dot;
}

TEST(Drawing, PutsLinearsOfOneValueIntoOneGroup) {
  const std::string dot = drawn(layered({0, 8}), is_layer);
  EXPECT_EQ(count(dot, "COLSPAN=\"3\"[^>]*><FONT[^>]*>group 1<"), 1u) << dot;
  EXPECT_EQ(count(dot, "COLSPAN=\"3\"[^>]*><FONT[^>]*>group 3<"), 1u) << dot;
  EXPECT_EQ(count(dot, ">group 5<"), 1u) << dot;  // the head
}

TEST(Drawing, FoldsExpertsAndShowsWhoseWeightsTheyRead) {
  const std::string dot = drawn(mixture(8), is_layer);
  // The first adds to nothing, so it is unlike the others.
  EXPECT_EQ(count(dot, "<B>experts.2&#8211;7</B>"), 1u) << dot;
  EXPECT_EQ(count(dot, "6 like experts.1"), 1u) << dot;
  EXPECT_EQ(count(dot, "style=dotted"), 2u) << dot;  // down_proj of the two that are shown
  EXPECT_EQ(count(dot, "<B>select tokens</B>"), 2u) << dot;
}

TEST(Drawing, ExpertsThatSeeAllTokensShareOneGroup) {
  const std::string dot = drawn(without_selection(mixture(8)), is_layer);
  EXPECT_EQ(count(dot, "select tokens"), 0u) << dot;
  EXPECT_EQ(count(dot, ">group 1<"), 3u) << dot;  // the router, and gate and up of the two experts that are shown
  EXPECT_EQ(count(dot, ">group 2<"), 1u) << dot;
  EXPECT_EQ(count(dot, ">group 3<"), 1u) << dot;
}

/// A value that the third of three subgraphs reads, past the second.
TEST(Drawing, MarksValuesThatPassOtherSubgraphs) {
  Tracer tracer;
  const Symbol start = tracer.embedding("embed", tracer.tokens(), 100, 16);
  const Symbol x = layer(tracer, "b", layer(tracer, "a", start, 0), 8);
  const std::string dot = drawn(tracer.finish(tracer.add(x, start)), is_layer, true);
  EXPECT_EQ(count(dot, "values that wait"), 1u) << dot;
  EXPECT_EQ(count(drawn(layered({0, 8}), is_layer), "values that wait"), 0u);
}

}  // namespace
}  // namespace layerpress::graph
