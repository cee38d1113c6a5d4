#include "layerpress/quant/stored_blocks.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "layerpress/gguf/block_rows.h"
#include "layerpress/quant/compressed_weight.h"

namespace layerpress::quant {
namespace {

const gguf::BlockType& type_named(const std::string& name) { return *gguf::find_block_type(name); }

QuantizationScheme scheme_of(int bits, bool symmetric, std::int64_t group) {
  QuantizationScheme scheme;
  scheme.weights.emplace();
  scheme.weights->num_bits = bits;
  scheme.weights->symmetric = symmetric;
  scheme.weights->strategy = group > 0 ? Strategy::kGroup : Strategy::kChannel;
  if (group > 0) scheme.weights->group_size = group;
  return scheme;
}

/// Every code occurs.
QuantizedWeight weight_of(const QuantizationScheme& scheme, std::int64_t group) {
  at::manual_seed(5);
  const int half = 1 << (scheme.weights->num_bits - 1);
  QuantizedWeight weight;
  weight.codes = at::randint(-half, half, {17, 256}, at::kChar);
  weight.scale = (at::rand({17, group > 0 ? 256 / group : 1}) * 0.01 + 0.001).to(at::kHalf);
  if (!scheme.weights->symmetric) weight.zero_point = at::randint(-half, half, weight.scale.sizes(), at::kChar);
  return weight;
}

struct Case {
  const char* type;
  int bits;
  bool symmetric;
  std::int64_t group;  // 0: a row
};

TEST(StoredBlocksTest, HoldTheSameValues) {
  for (const Case& one :
       {Case{"Q4_0", 4, true, 32}, Case{"Q4_0", 4, true, 128}, Case{"Q4_0", 3, true, 0}, Case{"Q5_0", 5, true, 64},
        Case{"Q8_0", 8, true, 0}, Case{"Q8_0", 4, true, 32}, Case{"Q4_1", 4, false, 32}, Case{"Q5_1", 4, false, 128}}) {
    const QuantizationScheme scheme = scheme_of(one.bits, one.symmetric, one.group);
    const gguf::BlockType& type = type_named(one.type);
    ASSERT_TRUE(holds_values(type, scheme, 256)) << one.type;
    const QuantizedWeight weight = weight_of(scheme, one.group);
    const auto blocks = blocks_of(type, scheme, weight);
    ASSERT_TRUE(blocks) << one.type;
    const at::Tensor found = gguf::decode_rows(type, *blocks, 256), wanted = dequantize(scheme, weight, at::kFloat);
    const double most = (found - wanted).abs().max().item<double>() / wanted.abs().max().item<double>();
    if (one.symmetric)
      EXPECT_TRUE(found.equal(wanted)) << one.type;
    else
      EXPECT_LT(most, 1.0 / 2048) << one.type;
  }
}

TEST(StoredBlocksTest, ActivationOrderLeavesGroupsTogether) {
  QuantizationScheme ordered = scheme_of(4, true, 32);
  ordered.weights->actorder = "static";
  EXPECT_TRUE(holds_values(type_named("Q4_0"), ordered, 256));
}

TEST(StoredBlocksTest, OtherWeightsDoNotFit) {
  EXPECT_FALSE(holds_values(type_named("Q4_0"), scheme_of(8, true, 32), 256));
  EXPECT_FALSE(holds_values(type_named("Q4_0"), scheme_of(4, true, 16), 256));
  EXPECT_FALSE(holds_values(type_named("Q4_0"), scheme_of(4, false, 32), 256));
  EXPECT_FALSE(holds_values(type_named("Q4_1"), scheme_of(4, true, 32), 256));
  EXPECT_FALSE(holds_values(type_named("Q4_K"), scheme_of(4, false, 32), 256));
  EXPECT_FALSE(holds_values(type_named("IQ4_NL"), scheme_of(4, true, 32), 256));
  const QuantizationScheme scheme = scheme_of(4, true, 32);
  QuantizedWeight tiny = weight_of(scheme, 32);
  tiny.scale = at::full_like(tiny.scale, 1e-12, at::kBFloat16);
  EXPECT_FALSE(blocks_of(type_named("Q4_0"), scheme, tiny));
}

}  // namespace
}  // namespace layerpress::quant
