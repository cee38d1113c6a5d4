#include "layerpress/gguf/blocks/grid_type.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "layerpress/gguf/blocks/block_rows.h"

namespace layerpress::gguf {
namespace {

std::vector<const GridType*> grid_types() {
  std::vector<const GridType*> types;
  for (const BlockType* type : block_types())
    if (const auto* grid = dynamic_cast<const GridType*>(type)) types.push_back(grid);
  return types;
}

/// Random bytes of blocks whose float16 scales are anything.
std::vector<std::uint8_t> random_block(const GridType& type) {
  const at::Tensor bytes = at::randint(256, {type.block_bytes()}, at::kByte);
  const std::uint8_t* first = bytes.const_data_ptr<std::uint8_t>();
  return {first, first + type.block_bytes()};
}

TEST(GridTypes, PackEveryBitThatTheyUnpack) {
  at::manual_seed(1);
  for (const GridType* type : grid_types())
    for (int trial = 0; trial < 20; ++trial) {
      const std::vector<std::uint8_t> block = random_block(*type);
      BlockContents contents;
      type->unpack(block.data(), contents);
      std::vector<std::uint8_t> packed(block.size(), 0xAA);
      type->pack(contents, packed.data());
      EXPECT_EQ(packed, block) << type->name();
    }
}

TEST(GridTypes, ChooseTheNearestCodes) {
  for (const GridType* type : grid_types()) {
    const GridShape& shape = type->shape();
    for (int code = 0; code < shape.codes; ++code)  // FP4 has two zeros
      EXPECT_EQ(shape.level(shape.nearest(shape.level(code))), shape.level(code)) << type->name();
    EXPECT_EQ(shape.nearest(-1e4f), 0) << type->name();
    EXPECT_EQ(shape.nearest(1e4f), shape.codes - 1) << type->name();
    for (int code = 1; code < shape.codes; ++code) {
      const float middle = 0.5f * (shape.level(code - 1) + shape.level(code));
      EXPECT_EQ(shape.nearest(middle - 0.01f), code - 1) << type->name();
      EXPECT_EQ(shape.nearest(middle + 0.01f), code) << type->name();
    }
  }
}

TEST(GridTypes, ChooseTheSameForBlocksTogether) {
  const at::Tensor values = at::randn({6 * 256}), weights = at::rand({6 * 256});
  for (const GridType* type : grid_types()) {
    std::array<BlockContents, 6> together;
    type->choose_blocks(values.const_data_ptr<float>(), weights.const_data_ptr<float>(), together);
    for (std::size_t b = 0; b < together.size(); ++b) {
      const std::size_t first = b * static_cast<std::size_t>(type->shape().values);
      BlockContents alone;
      type->choose(values.const_data_ptr<float>() + first, weights.const_data_ptr<float>() + first, alone);
      EXPECT_EQ(alone.codes, together[b].codes) << type->name();
      EXPECT_EQ(alone.scale_of(0), together[b].scale_of(0)) << type->name();
    }
  }
}

TEST(BlockRows, RoundRowsByThemselves) {
  const at::Tensor weight = at::randn({21, 512}).to(at::kBFloat16), importance = at::rand({512});
  for (const BlockType* type : block_types()) {
    const at::Tensor whole = round_rows(*type, weight, importance);
    for (const std::int64_t row : {0, 7, 20})
      EXPECT_TRUE(round_rows(*type, weight.narrow(0, row, 1), importance).equal(whole.narrow(0, row, 1)))
          << type->name();
    EXPECT_TRUE(round_rows(*type, weight.to(at::kFloat), importance).equal(whole)) << type->name();
  }
}

TEST(BlockRows, FollowImportance) {
  at::manual_seed(3);
  const at::Tensor weight = at::randn({16, 512}), importance = at::randn({512}).square().square();
  const auto error = [&](const BlockType& type, const at::Tensor& given) {
    const at::Tensor difference = decode_rows(type, round_rows(type, weight, given), 512) - weight;
    return (difference.square() * importance).sum().item<double>();
  };
  for (const BlockType* type : block_types()) {
    if (type->uses_importance())
      EXPECT_LT(error(*type, importance), 0.95 * error(*type, {})) << type->name();
    else
      EXPECT_TRUE(round_rows(*type, weight, importance).equal(round_rows(*type, weight, {}))) << type->name();
  }
}

}  // namespace
}  // namespace layerpress::gguf
