#include "layerpress/execution/rotary_tables.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace layerpress::execution {
namespace {

const residency::Placement kWide{at::kCPU, at::kFloat};

graph::RopeTable rope() {
  graph::RopeTable table;
  table.inverse_frequencies = {1.0, 0.25};
  table.attention_scaling = 2;
  return table;
}

TEST(RotaryTables, AreTextbookCosinesAndSines) {
  RotaryTables tables;
  const RotaryTables::Table table = tables.get(rope(), rope().inverse_frequencies, 9, kWide);
  const at::Tensor positions = at::arange(9, at::kDouble).unsqueeze(1), rates = at::tensor({1.0, 0.25}, at::kDouble);
  EXPECT_TRUE(at::allclose(table.cosine, (positions * rates).cos().mul(2).to(at::kFloat)));
  EXPECT_TRUE(at::allclose(table.sine, (positions * rates).sin().mul(2).to(at::kFloat)));
}

TEST(RotaryTables, AreKeptAndGrow) {
  RotaryTables tables;
  const RotaryTables::Table first = tables.get(rope(), rope().inverse_frequencies, 9, kWide);
  EXPECT_TRUE(tables.get(rope(), rope().inverse_frequencies, 5, kWide).cosine.is_same(first.cosine));
  const RotaryTables::Table longer = tables.get(rope(), rope().inverse_frequencies, 12, kWide);
  EXPECT_EQ(longer.sine.sizes(), at::IntArrayRef({12, 2}));
  EXPECT_TRUE(at::equal(longer.sine.narrow(0, 0, 9), first.sine));
  graph::RopeTable other = rope();
  other.attention_scaling = 1;
  EXPECT_TRUE(at::allclose(tables.get(other, other.inverse_frequencies, 12, kWide).sine.mul(2), longer.sine));
}

TEST(RotaryTables, ThatDependOnALengthAreNotKept) {
  RotaryTables tables;
  const std::vector<double> own{0.5, 0.125};
  EXPECT_FALSE(tables.get(rope(), own, 9, kWide).cosine.is_same(tables.get(rope(), own, 9, kWide).cosine));
}

}  // namespace
}  // namespace layerpress::execution
