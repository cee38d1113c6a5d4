#include "layerpress/graph/facts/residual_stream.h"

#include <gtest/gtest.h>

#include "layerpress/graph/tracer.h"

namespace layerpress::graph {
namespace {

constexpr std::int64_t kWidth = 8;

Symbol stream_start(Tracer& tracer) { return tracer.embedding("embed", tracer.tokens(), 10, kWidth); }

Symbol whole_norm(Tracer& tracer, const std::string& name, Symbol x) { return tracer.rms_norm(name, "Norm", x, 1e-5); }

std::vector<std::string> writer_weights(const ResidualStream& stream) {
  std::vector<std::string> names;
  for (const auto& writer : stream.writers) names.push_back(writer.weight);
  std::sort(names.begin(), names.end());
  return names;
}

/// "norm>weight", or "weight" where no norm lies between.
std::vector<std::string> reader_weights(const Graph& graph, const ResidualStream& stream) {
  std::vector<std::string> names;
  for (const auto& reader : stream.readers)
    names.push_back(reader.norm < 0 ? reader.weight
                                    : graph.module_name(graph.nodes[reader.norm]) + ">" + reader.weight);
  std::sort(names.begin(), names.end());
  return names;
}

using WeightNames = std::vector<std::string>;

TEST(ResidualStream, IsWrittenAndReadByLinears) {
  Tracer tracer;
  Symbol x = tracer.scale(stream_start(tracer), {.factor = 3});
  const Symbol inner = whole_norm(tracer, "norm", x);
  const Symbol y = tracer.linear("down", tracer.linear("up", inner, 12), kWidth, {.bias = true});
  x = tracer.add(x, tracer.scale(y, {.factor = 0.5}));
  const Graph graph = tracer.finish(tracer.linear("head", whole_norm(tracer, "last", x), 10));
  const ResidualStream stream = residual_stream(graph);
  EXPECT_EQ(stream.hindrance, "");
  EXPECT_EQ(stream.width, kWidth);
  EXPECT_EQ(writer_weights(stream), (WeightNames{"down.weight", "embed.weight"}));
  EXPECT_EQ(reader_weights(graph, stream), (WeightNames{"last>head.weight", "norm>up.weight"}));
  EXPECT_EQ(stream.norms.size(), 2u);
  for (const auto& writer : stream.writers) EXPECT_EQ(writer.bias, writer.weight == "down.weight" ? "down.bias" : "");
}

TEST(ResidualStream, ReachesExpertsTheirRouterAndASharedOnesGate) {
  Tracer tracer;
  const Symbol x = stream_start(tracer);
  const Symbol inner = whole_norm(tracer, "norm", x);
  const Symbol logits = tracer.linear("router", inner, 2);
  Route route;
  route.experts = 2, route.top_k = 1;
  const Symbol routing = tracer.route(logits, route);
  const Symbol routed = tracer.experts("experts", inner, logits, routing, 12, "silu", {"Expert"});
  const Symbol shared = tracer.linear("shared", tracer.linear("shared_up", inner, 12), kWidth);
  const Symbol gated = tracer.gate(tracer.linear("shared_gate", inner, 1), shared);
  const Graph graph = tracer.finish(tracer.linear("head", tracer.add(x, tracer.add(routed, gated)), 10));
  const ResidualStream stream = residual_stream(graph);
  EXPECT_EQ(stream.hindrance, "");
  EXPECT_EQ(writer_weights(stream),
            (WeightNames{"embed.weight", "experts.0.down_proj.weight", "experts.1.down_proj.weight", "shared.weight"}));
  EXPECT_EQ(reader_weights(graph, stream),
            (WeightNames{"head.weight", "norm>experts.0.gate_proj.weight", "norm>experts.0.up_proj.weight",
                         "norm>experts.1.gate_proj.weight", "norm>experts.1.up_proj.weight", "norm>router.weight",
                         "norm>shared_gate.weight", "norm>shared_up.weight"}));
}

/// The hindrance of a model with one block.
std::string hindrance_of(const std::function<Symbol(Tracer&, Symbol)>& block) {
  Tracer tracer;
  const Symbol x = stream_start(tracer);
  return residual_stream(tracer.finish(tracer.linear("head", tracer.add(x, block(tracer, x)), 10))).hindrance;
}

TEST(ResidualStream, IsHinderedByWhatDoesNotTurnWithIt) {
  const auto linear = [](Tracer& t, Symbol x) { return t.linear("own", x, kWidth); };
  EXPECT_EQ(hindrance_of(linear), "");
  EXPECT_EQ(hindrance_of(
                [&](Tracer& t, Symbol x) { return linear(t, t.scale(whole_norm(t, "before", x), {.factor = 0.5})); }),
            "");
  EXPECT_EQ(hindrance_of([&](Tracer& t, Symbol x) { return whole_norm(t, "after", linear(t, x)); }),
            "after is a norm whose result is added to the residual stream");
  EXPECT_EQ(hindrance_of([&](Tracer& t, Symbol x) { return linear(t, t.layer_norm("before", "LayerNorm", x, 1e-5)); }),
            "before is a LayerNorm, which subtracts the mean of what it reads");
  EXPECT_EQ(hindrance_of([&](Tracer& t, Symbol x) { return linear(t, t.gated_activation("silu", x, x)); }),
            "gated_activation of the model reads the residual stream and is no linear");
  EXPECT_EQ(hindrance_of([&](Tracer& t, Symbol x) {
              const auto scope = t.module("mlp", "MLP");
              return t.gated_activation("silu", linear(t, x), t.linear("up", x, kWidth));
            }),
            "gated_activation of mlp writes into the residual stream and is no linear");
  EXPECT_EQ(hindrance_of([&](Tracer& t, Symbol x) {
              const Symbol normed = whole_norm(t, "before", x);
              return t.add(normed, linear(t, normed));
            }),
            "before is a norm that add of the model reads, which is no linear");
  EXPECT_EQ(hindrance_of([&](Tracer& t, Symbol x) { return linear(t, t.rms_norm("heads", "Norm", x, 1e-5, 4)); }),
            "heads reads the residual stream and is no linear");
}

}  // namespace
}  // namespace layerpress::graph
