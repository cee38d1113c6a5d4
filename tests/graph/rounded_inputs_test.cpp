#include "layerpress/graph/facts/rounded_inputs.h"

#include <gtest/gtest.h>

#include "layerpress/graph/text.h"
#include "layerpress/graph/tracer.h"

namespace layerpress::graph {
namespace {

/// Two linears that read one value, and one that reads their sum.
Graph three_linears() {
  Tracer tracer;
  const Symbol x = tracer.embedding("embed", tracer.tokens(), 50, 16);
  const Symbol sum = tracer.add(tracer.linear("a", x, 8), tracer.linear("b", x, 8));
  Graph graph = tracer.finish(tracer.linear("c", sum, 4));
  graph.constants.push_back({"table", "float32", {1}, std::string(4, '\0')});
  return graph;
}

std::size_t roundings(const Graph& graph) {
  std::size_t count = 0;
  for (const Node& node : graph.nodes) count += std::holds_alternative<RoundValues>(node.operation) ? 1 : 0;
  return count;
}

/// Rounds the input of every linear; `bits_of` by the linear's features.
Graph rounded(const Graph& graph, const std::function<std::int64_t(std::int64_t)>& bits_of) {
  return with_rounded_inputs(graph, [&](NodeId n) {
    std::vector<RoundedInput> inputs;
    if (const auto* linear = std::get_if<Linear>(&graph.nodes[n].operation))
      inputs.push_back({0, {.bits = bits_of(linear->in_features), .run = 4}});
    return inputs;
  });
}

TEST(RoundedInputs, AreSharedByReadersThatRoundInTheSameWay) {
  const Graph plain = three_linears();
  const Graph changed = rounded(plain, [](std::int64_t) { return 4; });
  EXPECT_EQ(roundings(changed), 2u);
  EXPECT_EQ(changed.nodes.size(), plain.nodes.size() + 2);
  int next = 4;
  EXPECT_EQ(roundings(rounded(plain, [&](std::int64_t) { return next++; })), 3u);
}

TEST(RoundedInputs, LeaveTheRestAsItIs) {
  const Graph plain = three_linears();
  const Graph changed = rounded(plain, [](std::int64_t) { return 4; });
  EXPECT_EQ(changed.constants, plain.constants);
  EXPECT_EQ(to_text(with_rounded_inputs(plain, [](NodeId) { return std::vector<RoundedInput>(); })), to_text(plain));
}

}  // namespace
}  // namespace layerpress::graph
