#include "layerpress/graph/facts/value_heads.h"

#include <gtest/gtest.h>

#include "layerpress/graph/tracer.h"

namespace layerpress::graph {
namespace {

constexpr std::int64_t kHeadDim = 4, kHeads = 4, kKvHeads = 2;

Symbol mixed_values(Tracer& tracer, Symbol q, Symbol k, Symbol v) {
  return tracer.attention(q, k, v, {kHeads, kKvHeads, kHeadDim, 0.5});
}

TEST(ValueHeads, AreRowsOfTheirLinear) {
  Tracer tracer;
  const Symbol x = tracer.embedding("embed", tracer.tokens(), 10, 16);
  const Symbol q = tracer.linear("q", x, 16), k = tracer.linear("k", x, 8), v = tracer.linear("v", x, 8);
  const Graph graph = tracer.finish(tracer.linear("o", mixed_values(tracer, q, k, v), 16));
  const AllValueHeads all = value_heads(graph);
  ASSERT_EQ(all.heads.size(), 1u);
  const ValueHeads& heads = all.heads.front();
  EXPECT_EQ(graph.module_name(graph.nodes[heads.linear]), "v");
  ASSERT_EQ(heads.rows.size(), 1u);
  EXPECT_EQ(heads.rows[0].count, 8);
  EXPECT_EQ(heads.head_dim, kHeadDim);
  ASSERT_EQ(heads.readers.size(), 1u);
  EXPECT_EQ(graph.module_name(graph.nodes[heads.readers[0]]), "o");
}

TEST(ValueHeads, AreSomeRowsOfAFusedLinear) {
  Tracer tracer;
  const Symbol x = tracer.embedding("embed", tracer.tokens(), 10, 16);
  const Symbol qkv = tracer.linear("qkv", x, 32);
  const auto part = [&](std::int64_t begin, std::int64_t end) {
    return tracer.slice(qkv, {.size = 32, .begin = begin, .end = end});
  };
  const Symbol mix = mixed_values(tracer, part(0, 16), part(16, 24), part(24, 32));
  const AllValueHeads all = value_heads(tracer.finish(tracer.linear("o", mix, 16)));
  ASSERT_EQ(all.heads.size(), 1u);
  ASSERT_EQ(all.heads[0].rows.size(), 1u);
  EXPECT_EQ(all.heads[0].rows[0].first, 24);
  EXPECT_EQ(all.heads[0].rows[0].count, 8);
}

/// As latent attention expands keys and values: each head's values follow its keys.
TEST(ValueHeads, AreRunsOfRows) {
  Tracer tracer;
  const Symbol x = tracer.embedding("embed", tracer.tokens(), 10, 16);
  const Symbol kv = tracer.linear("kv", x, kKvHeads * 2 * kHeadDim);
  const Symbol k = tracer.slice(kv, {.size = 8, .begin = 0, .end = 4}),
               v = tracer.slice(kv, {.size = 8, .begin = 4, .end = 8});
  const AllValueHeads all =
      value_heads(tracer.finish(tracer.linear("o", mixed_values(tracer, tracer.linear("q", x, 16), k, v), 16)));
  ASSERT_EQ(all.heads.size(), 1u);
  ASSERT_EQ(all.heads[0].rows.size(), 2u);
  EXPECT_EQ(all.heads[0].rows[0].first, 4);
  EXPECT_EQ(all.heads[0].rows[1].first, 12);
}

std::string reason_against(const std::function<Symbol(Tracer&, Symbol x, Symbol q, Symbol k)>& rest) {
  Tracer tracer;
  const Symbol x = tracer.embedding("embed", tracer.tokens(), 10, 16);
  const Symbol q = tracer.linear("q", x, 16), k = tracer.linear("k", x, 8);
  const AllValueHeads all = value_heads(tracer.finish(rest(tracer, x, q, k)));
  EXPECT_EQ(all.heads.size() + all.others.size(), 1u);
  return all.others.empty() ? "" : all.others[0].second;
}

TEST(ValueHeads, AreNotTurnedWhereOthersReadThem) {
  EXPECT_EQ(
      reason_against([](Tracer& t, Symbol, Symbol q, Symbol k) { return t.linear("o", mixed_values(t, q, k, k), 16); }),
      "its values have other readers");
  EXPECT_EQ(reason_against([](Tracer& t, Symbol x, Symbol q, Symbol k) {
              const Symbol v = t.rms_norm("norm", "Norm", t.linear("v", x, 8), 1e-5);
              return t.linear("o", mixed_values(t, q, k, v), 16);
            }),
            "no linear makes its values");
  EXPECT_EQ(reason_against([](Tracer& t, Symbol x, Symbol q, Symbol k) {
              const Symbol mix = mixed_values(t, q, k, t.linear("v", x, 8));
              return t.linear("o", t.gated_activation("silu", q, mix), 16);
            }),
            "not only linears read its output");
}

}  // namespace
}  // namespace layerpress::graph
