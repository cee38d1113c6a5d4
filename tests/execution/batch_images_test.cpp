#include "layerpress/execution/batch_images.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "layerpress/execution/batch.h"

namespace layerpress::execution {
namespace {

using graph::Rows;
using Numbers = std::vector<std::int64_t>;

constexpr std::int64_t kTiles = 2;

/// Tiles of 4 x 4 pixels and patches of 2 x 2: 5 rows of a tile, 8 with padding.
graph::ImageGeometry geometry() { return {1, 4, 2, kTiles, 3}; }

Numbers numbers(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.to(at::kLong).flatten().contiguous();
  return {flat.const_data_ptr<std::int64_t>(), flat.const_data_ptr<std::int64_t>() + flat.numel()};
}

/// Samples of 2, 3 and 4 tokens with 1, 0 and 2 images, which fill 1, 2 and 1 tiles.
Batch batch() {
  Batch batch;
  batch.offsets = {0, 2, 5, 9};
  batch.images.geometry = geometry();
  batch.images.offsets = {0, 1, 1, 3};
  batch.images.filled_tiles = {1, 2, 1};
  batch.images.aspect_ratios = {1, 2, 1};
  for (const std::int64_t tiles : batch.images.filled_tiles)
    batch.images.pixels.push_back(at::arange(1, 16 * tiles + 1, at::kFloat).view({tiles, 1, 4, 4}));
  batch.images.masks.resize(3);
  batch.images.masks[0] = at::tensor({0, 0, 1, 0}, at::kByte).view({2, 1, kTiles});
  batch.images.masks[2] = at::tensor({0, 0, 0, 0, 1, 1, 0, 0, 1, 1, 0, 0, 0, 0, 1, 0}, at::kByte).view({4, 2, kTiles});
  return batch;
}

TEST(BatchImages, RowsOfEachKind) {
  const Batch images = batch();
  EXPECT_EQ(images.rows(Rows::kTokens), 9);
  EXPECT_EQ(images.rows(Rows::kPatches), 3 * kTiles * 8);
  EXPECT_EQ(images.rows(Rows::kVision), 3 * kTiles * 5);
  EXPECT_EQ(images.images.illustrated_tokens(images.offsets), 6);
  EXPECT_EQ(images.rows(Rows::kIllustrated), 6);
  Batch text;
  text.offsets = {0, 4};
  EXPECT_EQ(text.rows(Rows::kPatches), 0);
  EXPECT_EQ(text.rows(Rows::kVision), 0);
  EXPECT_EQ(text.images.illustrated_tokens(text.offsets), 0);
}

TEST(BatchImages, TokensOfIllustratedSamplesAreSelected) {
  const ImageRows rows = image_rows(batch(), at::kCPU);
  EXPECT_EQ(numbers(rows.illustrated), (Numbers{0, 1, 5, 6, 7, 8}));
  EXPECT_EQ(numbers(rows.attending), (Numbers{0, 1, 0, 1, 1, 1}));
  EXPECT_EQ(numbers(rows.aspect_ratios), (Numbers{1, 2, 1}));
}

TEST(BatchImages, PaddingAndOtherTilesAreTheRest) {
  const ImageRows rows = image_rows(batch(), at::kCPU);
  ASSERT_EQ(rows.images.size(), 3u);
  EXPECT_EQ(numbers(rows.images[0].filled), (Numbers{0, 1, 2, 3, 4}));
  EXPECT_EQ(numbers(rows.images[0].rest), (Numbers{5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}));
  EXPECT_EQ(numbers(rows.images[1].filled), (Numbers{0, 1, 2, 3, 4, 8, 9, 10, 11, 12}));
  EXPECT_EQ(numbers(rows.images[1].rest), (Numbers{5, 6, 7, 13, 14, 15}));
}

TEST(BatchImages, TokensThatAttendAlikeAreReadTogether) {
  const ImageRows rows = image_rows(batch(), at::kCPU);
  std::map<Numbers, Numbers> keys;
  for (const ImageRows::Reading& reading : rows.readings) keys[numbers(reading.queries)] = numbers(reading.keys);
  ASSERT_EQ(keys.size(), 5u);
  // Vision rows: image 0 from 0, image 1 from 10, image 2 from 20, 5 for each tile.
  EXPECT_EQ(keys[Numbers{0}], (Numbers{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));  // given none: all of its sample
  EXPECT_EQ(keys[Numbers{1}], (Numbers{0, 1, 2, 3, 4}));
  EXPECT_EQ(keys[Numbers{2}].size(), 20u);
  EXPECT_EQ((keys[Numbers{3, 4}]), (Numbers{10, 11, 12, 13, 14, 15, 16, 17, 18, 19}));
  EXPECT_EQ(keys[Numbers{5}], (Numbers{20, 21, 22, 23, 24}));
}

TEST(BatchImages, TilesThatAreNotFilledDoNotCount) {
  const Batch images = batch();
  EXPECT_EQ(numbers(counted_rows(images, Rows::kVision)),
            (Numbers{0, 1, 2, 3, 4, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24}));
  EXPECT_FALSE(counted_rows(images, Rows::kTokens).defined());
  EXPECT_FALSE(counted_rows(images, Rows::kPatches).defined());
  EXPECT_FALSE(counted_rows(Batch(), Rows::kVision).defined());
}

TEST(BatchImages, CountedRowsAreSelected) {
  const Batch images = batch();
  const at::Tensor states = at::arange(3 * kTiles * 5, at::kFloat).unsqueeze(1);
  EXPECT_EQ(count_of_counted_rows(images, Rows::kVision), 4 * 5);
  EXPECT_TRUE(at::equal(select_counted_rows(images, Rows::kVision, states),
                        states.index_select(0, counted_rows(images, Rows::kVision))));
  EXPECT_EQ(select_counted_rows(images, Rows::kVision, states).size(0), 4 * 5);
  const at::Tensor tokens = at::rand({6, 2});
  EXPECT_EQ(count_of_counted_rows(images, Rows::kIllustrated), 6);
  EXPECT_TRUE(select_counted_rows(images, Rows::kIllustrated, tokens).is_same(tokens));
}

TEST(BatchImages, PixelsLieWhereTheEncoderWantsThem) {
  graph::PatchEmbedding embedding;
  embedding.channels = 1;
  embedding.patch_size = 2;
  const at::Tensor pixels = unfolded_pixels(batch().images, embedding, at::kCPU, at::kFloat);
  ASSERT_EQ(pixels.sizes(), (Numbers{3 * kTiles * 8, 4}));
  const at::Tensor tiles = pixels.view({3, kTiles, 8, 4});
  EXPECT_EQ(numbers(tiles[0][0].slice(0, 0, 2)), (Numbers{0, 0, 0, 0, 1, 2, 5, 6}));
  EXPECT_EQ(numbers(tiles[1][1][4]), (Numbers{27, 28, 31, 32}));
  EXPECT_EQ(tiles[0][1].abs().sum().item<float>(), 0);
  EXPECT_EQ(tiles.slice(2, 5).abs().sum().item<float>(), 0);
  EXPECT_EQ(unfolded_pixels(BatchImages(), embedding, at::kCPU, at::kBFloat16).sizes(), (Numbers{0, 4}));
}

}  // namespace
}  // namespace layerpress::execution
