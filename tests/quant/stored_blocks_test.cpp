#include "layerpress/quant/rounding/stored_blocks.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "layerpress/gguf/blocks/block_rows.h"
#include "layerpress/quant/block_scheme.h"
#include "layerpress/quant/compressed_weight.h"
#include "layerpress/quant/rounding/row_transfer.h"

namespace layerpress::quant {
namespace {

QuantizationScheme blocks_named(const std::string& name) {
  const QuantizationScheme scheme = block_scheme(*gguf::find_block_type(name));
  const QuantizationScheme* scaled = with_scaled_blocks(scheme);
  return scaled == nullptr ? scheme : *scaled;
}

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
    ASSERT_TRUE(holds_values(blocks_named(one.type), scheme, 256)) << one.type;
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

QuantizationScheme fp4_scheme(const char* preset) {
  QuantizationScheme scheme = preset_scheme(preset);
  scheme.input_activations.reset();
  return scheme;
}

TEST(StoredBlocksTest, HoldTheSameFp4Values) {
  at::manual_seed(5);
  for (const auto& [name, preset] : {std::pair{"MXFP4", "MXFP4A16"}, {"NVFP4", "NVFP4A16"}}) {
    const QuantizationScheme scheme = fp4_scheme(preset);
    const gguf::BlockType& type = type_named(name);
    ASSERT_TRUE(holds_values(blocks_named(name), scheme, 256)) << name;
    QuantizedWeight weight{.codes = at::randint(0, 16, {17, 256}, at::kByte),
                           .scale = at::randint(1, 120, {17, 256 / *scheme.weights->group_size}, at::kByte),
                           .zero_point = {}};
    if (preset == std::string("NVFP4A16")) {
      weight.scale = weight.scale.view(at::kFloat8_e4m3fn);
      weight.global_scale = at::full({1}, 64.0F);  // a power of two: quotients are exact
    }
    const auto blocks = blocks_of(type, scheme, weight);
    ASSERT_TRUE(blocks) << name;
    at::Tensor found = gguf::decode_rows(type, *blocks, 256);
    if (weight.global_scale.defined()) found /= weight.global_scale;
    EXPECT_TRUE(found.equal(dequantize(scheme, weight, at::kFloat))) << name;
    weight.scale.view(at::kByte)[3][1] = 255;
    EXPECT_FALSE(blocks_of(type, scheme, weight)) << name;
  }
  EXPECT_FALSE(holds_values(blocks_named("NVFP4"), fp4_scheme("MXFP4A16"), 256));
  EXPECT_FALSE(holds_values(blocks_named("MXFP4"), fp4_scheme("NVFP4A16"), 256));
  EXPECT_FALSE(holds_values(blocks_named("NVFP4"), fp4_scheme("NVFP4A16"), 96));
  EXPECT_FALSE(holds_values(block_scheme(type_named("NVFP4")), fp4_scheme("NVFP4A16"), 256));
}

TEST(StoredBlocksTest, AFactorGoesWithItsBlocks) {
  at::manual_seed(5);
  const QuantizationScheme scheme = blocks_named("NVFP4");
  const at::Tensor original = at::randn({6, 128}) * 0.02;
  QuantizedWeight weight{.codes = {}, .scale = {}, .zero_point = {}, .global_scale = scale_of_blocks(original)};
  weight.codes = gguf::round_rows(type_named("NVFP4"), original / weight.global_scale, {});
  const at::Tensor values = dequantize(scheme, weight, at::kFloat);
  EXPECT_LT((values - original).norm().item<double>(), 0.12 * original.norm().item<double>());
  EXPECT_NEAR(relative_error(scheme, original, weight), ((values - original).norm() / original.norm()).item<double>(),
              1e-6);

  std::vector<std::uint64_t> bytes(transfer_bytes(scheme, 6, 128, at::kFloat) / 8 + 1);
  auto* place = reinterpret_cast<std::uint8_t*>(bytes.data());
  write_transfer(scheme, weight, place);
  EXPECT_TRUE(
      dequantize(scheme, join_rows({read_transfer(scheme, 6, 128, at::kFloat, place)}), at::kFloat).equal(values));

  const std::vector<NamedTensor> written = compress(scheme, weight);
  ASSERT_EQ(written.size(), compressed_layout(scheme, 6, 128, at::kFloat).size());
  const QuantizedWeight read = decompress(scheme, "q", [&](const std::string& suffix) -> std::optional<at::Tensor> {
    for (const NamedTensor& tensor : written)
      if (tensor.suffix == suffix) return tensor.tensor;
    return std::nullopt;
  });
  EXPECT_TRUE(dequantize(scheme, read, at::kFloat).equal(values));
}

TEST(StoredBlocksTest, ActivationOrderLeavesGroupsTogether) {
  QuantizationScheme ordered = scheme_of(4, true, 32);
  ordered.weights->actorder = "static";
  EXPECT_TRUE(holds_values(blocks_named("Q4_0"), ordered, 256));
}

TEST(StoredBlocksTest, OtherWeightsDoNotFit) {
  EXPECT_FALSE(holds_values(blocks_named("Q4_0"), scheme_of(8, true, 32), 256));
  EXPECT_FALSE(holds_values(blocks_named("Q4_0"), scheme_of(4, true, 16), 256));
  EXPECT_FALSE(holds_values(blocks_named("Q4_0"), scheme_of(4, false, 32), 256));
  EXPECT_FALSE(holds_values(blocks_named("Q4_1"), scheme_of(4, true, 32), 256));
  EXPECT_FALSE(holds_values(blocks_named("Q4_K"), scheme_of(4, false, 32), 256));
  EXPECT_FALSE(holds_values(blocks_named("IQ4_NL"), scheme_of(4, true, 32), 256));
  const QuantizationScheme scheme = scheme_of(4, true, 32);
  QuantizedWeight tiny = weight_of(scheme, 32);
  tiny.scale = at::full_like(tiny.scale, 1e-12, at::kBFloat16);
  EXPECT_FALSE(blocks_of(type_named("Q4_0"), scheme, tiny));
}

}  // namespace
}  // namespace layerpress::quant
