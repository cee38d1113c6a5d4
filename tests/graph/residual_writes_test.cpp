#include "layerpress/graph/facts/residual_writes.h"

#include <gtest/gtest.h>

#include "layerpress/graph/tracer.h"

namespace layerpress::graph {
namespace {

constexpr std::int64_t kFeatures = 8;

Symbol embedded(Tracer& tracer) { return tracer.embedding("embed", tracer.tokens(), 10, kFeatures); }

/// Names of the linears that write into the stream.
std::vector<std::string> writers(const Graph& graph) {
  std::vector<std::string> names;
  for (const auto& [value, write] : residual_writes(graph)) {
    EXPECT_EQ(graph.nodes[write.linear].inputs[0], value);
    names.push_back(graph.module_name(graph.nodes[write.linear]));
  }
  return names;
}

TEST(ResidualWrites, AreFoundWithTheirStream) {
  Tracer tracer;
  const Symbol x = embedded(tracer);
  const Symbol inner = tracer.linear("up", tracer.rms_norm("norm", "Norm", x, 1e-5), 12);
  const Symbol y = tracer.linear("down", inner, kFeatures);
  const Graph graph = tracer.finish(tracer.linear("head", tracer.add(y, x), 10));
  const auto writes = residual_writes(graph);
  ASSERT_EQ(writes.size(), 1u);
  const ResidualWrite& write = writes.begin()->second;
  EXPECT_EQ(graph.module_name(graph.nodes[write.linear]), "down");
  EXPECT_TRUE(std::holds_alternative<Embedding>(graph.nodes[graph.values[write.stream].producer].operation));
  EXPECT_EQ(write.output, graph.nodes[write.linear].output);
  EXPECT_EQ(write.factor, 1);
  EXPECT_EQ(write.bias, "");
}

TEST(ResidualWrites, AreScaledOnTheWay) {
  Tracer tracer;
  const Symbol x = embedded(tracer);
  const Symbol y = tracer.scale(tracer.linear("down", tracer.linear("up", x, 12), kFeatures), {.factor = 0.25});
  const Graph graph = tracer.finish(tracer.add(x, y));
  ASSERT_EQ(writers(graph), std::vector<std::string>{"down"});
  EXPECT_EQ(residual_writes(graph).begin()->second.factor, 0.25);
}

TEST(ResidualWrites, AreNoneWhenOthersReadTheInputOrTheOutput) {
  Tracer tracer;
  Symbol x = embedded(tracer);
  const Symbol shared = tracer.linear("up", x, 12);
  x = tracer.add(x, tracer.linear("first", shared, kFeatures));
  x = tracer.add(x, tracer.linear("second", shared, kFeatures));
  const Symbol y = tracer.linear("twice", tracer.linear("up2", x, 12), kFeatures);
  x = tracer.add(tracer.add(x, y), y);
  EXPECT_EQ(writers(tracer.finish(x)), std::vector<std::string>());
}

/// Beside it another branch is computed, whose linears may be compressed later than the one that is asked for.
TEST(ResidualWrites, AreNoneWhereTheStreamIsNotBeforeTheInput) {
  Tracer tracer;
  const Symbol x = embedded(tracer);
  const Symbol one = tracer.linear("one", tracer.linear("up1", x, 12), kFeatures);
  const Symbol two = tracer.linear("two", tracer.linear("up2", x, 12), kFeatures);
  EXPECT_EQ(writers(tracer.finish(tracer.add(tracer.add(x, one), two))), std::vector<std::string>{"one"});
}

TEST(ResidualWrites, AreNoneBehindANorm) {
  Tracer tracer;
  const Symbol x = embedded(tracer);
  const Symbol y = tracer.linear("down", tracer.linear("up", x, 12), kFeatures);
  EXPECT_TRUE(residual_writes(tracer.finish(tracer.add(x, tracer.rms_norm("norm", "Norm", y, 1e-5)))).empty());
}

}  // namespace
}  // namespace layerpress::graph
