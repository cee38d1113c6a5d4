#include "layerpress/graph/facts/scale_absorbers.h"

#include <gtest/gtest.h>

#include "layerpress/graph/facts/expert_inputs.h"
#include "layerpress/graph/tracer.h"
#include "tests/graph/absorber_text.h"

namespace layerpress::graph {
namespace {

constexpr std::int64_t kChannels = 8;

Symbol embedded_tokens(Tracer& tracer) { return tracer.embedding("embed", tracer.tokens(), 10, kChannels); }

Symbol normalized(Tracer& tracer, const std::string& name, Symbol x) { return tracer.rms_norm(name, "Norm", x, 1e-5); }

std::string places(const Graph& graph) { return to_text(graph, scale_absorbers(graph)); }

/// Two heads of four features; v may have one head for both.
Symbol attended(Tracer& tracer, Symbol x, std::int64_t kv_heads) {
  const Symbol q = tracer.linear("q", x, 8), k = tracer.linear("k", x, 4 * kv_heads);
  const Symbol v = tracer.linear("v", x, 4 * kv_heads);
  return tracer.linear("o", tracer.attention(q, k, v, {2, kv_heads, 4, 0.5, 0}), kChannels);
}

TEST(ScaleAbsorbers, AreNormsAndLinearsBeforeLinears) {
  Tracer tracer;
  Symbol x = embedded_tokens(tracer);
  x = tracer.add(x, attended(tracer, normalized(tracer, "norm1", x), 2));
  const Symbol h = normalized(tracer, "norm2", x);
  const Symbol gate = tracer.linear("gate", h, 12), up = tracer.linear("up", h, 12);
  const Symbol inner = tracer.gated_activation("silu", gate, up);
  x = tracer.add(x, tracer.linear("down", inner, kChannels));
  EXPECT_EQ(places(tracer.finish(tracer.linear("head", normalized(tracer, "norm3", x), 10))),
            "norm1 -> q, k, v\n"
            "v -> o\n"
            "norm2 -> gate, up\n"
            "up -> down\n"
            "norm3 -> head\n");
}

TEST(ScaleAbsorbers, AreNoValuesOfGroupedHeads) {
  Tracer tracer;
  const Symbol x = embedded_tokens(tracer);
  EXPECT_EQ(places(tracer.finish(tracer.add(x, attended(tracer, normalized(tracer, "norm", x), 1)))),
            "norm -> q, k, v\n");
}

TEST(ScaleAbsorbers, AreNoNormsOfHeads) {
  Tracer tracer;
  const Symbol h = tracer.rms_norm("head_norm", "Norm", embedded_tokens(tracer), 1e-5, 4);
  EXPECT_EQ(places(tracer.finish(tracer.linear("out", h, kChannels))), "");
}

TEST(ScaleAbsorbers, AreNoneWhereSomethingElseReadsTheValue) {
  Tracer tracer;
  const Symbol h = normalized(tracer, "norm", embedded_tokens(tracer));
  EXPECT_EQ(places(tracer.finish(tracer.add(h, tracer.linear("out", h, kChannels)))), "");
  Tracer ends;
  const Symbol last = normalized(ends, "norm", embedded_tokens(ends));
  ends.linear("unread", last, 4);
  EXPECT_EQ(places(ends.finish(last)), "") << "the output would be scaled";
}

TEST(ScaleAbsorbers, LeaveTiedWeightsAlone) {
  Tracer tracer;
  const Symbol h = normalized(tracer, "norm", embedded_tokens(tracer));
  EXPECT_EQ(places(tracer.finish(tracer.linear("head", h, 10, {.bias = false, .tied_weight = "embed.weight"}))), "");
}

TEST(ScaleAbsorbers, ScalePartsOfFusedLinears) {
  Tracer tracer;
  const Symbol h = normalized(tracer, "norm", embedded_tokens(tracer));
  const Symbol both = tracer.linear("gate_up", h, 12);
  const Symbol gate = tracer.slice(both, {.size = 12, .begin = 0, .end = 6});
  const Symbol up = tracer.slice(both, {.size = 12, .begin = 6, .end = 12});
  EXPECT_EQ(places(tracer.finish(tracer.linear("down", tracer.gated_activation("silu", gate, up), kChannels))),
            "norm -> gate_up\n"
            "gate_up[6:12] -> down\n");
}

/// Every head's values stand behind its keys, as where both are expanded from one latent.
TEST(ScaleAbsorbers, FollowSlicesOfHeads) {
  Tracer tracer;
  const Symbol x = embedded_tokens(tracer);
  const Symbol expanded = tracer.linear("kv", normalized(tracer, "norm", x), 12);
  const Symbol k = tracer.slice(expanded, {.size = 6, .begin = 0, .end = 4});
  const Symbol v = tracer.slice(expanded, {.size = 6, .begin = 4, .end = 6});
  Attention attention{2, 2, 4, 0.5, 0};
  attention.value_head_dim = 2;
  const Graph graph =
      tracer.finish(tracer.linear("o", tracer.attention(tracer.linear("q", x, 8), k, v, attention), kChannels));
  EXPECT_EQ(places(graph),
            "norm -> kv\n"
            "kv[4:6, 10:12] -> o\n");
  const std::vector<ChannelRun> columns = {{4, 0, 2}, {10, 2, 2}};
  EXPECT_EQ(scale_absorbers(graph).at(1).readers.at(0).columns, columns);
}

TEST(ScaleAbsorbers, ReachRoutersAndExperts) {
  Tracer tracer;
  const Symbol h = normalized(tracer, "norm", embedded_tokens(tracer));
  const Symbol logits = tracer.linear("router", h, 2);
  const Symbol routing = tracer.route(logits, {.experts = 2, .top_k = 1, .bias = ""});
  const Graph graph = tracer.finish(tracer.experts("experts", h, logits, routing, 4, "silu", {.class_name = "Expert"}));
  const std::string wanted =
      "norm -> router, experts.0.gate_proj, experts.0.up_proj, experts.1.gate_proj, experts.1.up_proj\n"
      "experts.0.up_proj -> experts.0.down_proj\n"
      "experts.1.up_proj -> experts.1.down_proj\n";
  EXPECT_EQ(places(graph), wanted);
  EXPECT_EQ(places(without_selection(graph)), wanted);
}

TEST(ScaleAbsorbers, PassGatesAndFactors) {
  Tracer tracer;
  const Symbol x = embedded_tokens(tracer);
  const Symbol gated = tracer.gate(tracer.linear("gate", x, 1), tracer.linear("inner", x, 6));
  EXPECT_EQ(places(tracer.finish(tracer.linear("out", tracer.scale(gated, {.factor = 0.5}), kChannels))),
            "inner -> out\n");
}

}  // namespace
}  // namespace layerpress::graph
