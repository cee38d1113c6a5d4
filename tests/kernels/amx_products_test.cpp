// Products with the tiles of AMX, on an emulation of the tile instructions. On a machine that has AMX, the other tests of this folder
// run the instructions themselves.
#include "layerpress/kernels/cpu/bf16/amx_products.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <random>
#include <vector>

namespace layerpress::kernels::cpu {
namespace {

float low(std::uint32_t pair) { return std::bit_cast<float>(pair << 16); }
float high(std::uint32_t pair) { return std::bit_cast<float>(pair & 0xFFFF0000u); }
float dot(std::uint32_t a, std::uint32_t b) { return low(a) * low(b) + high(a) * high(b); }

/// Eight registers of 16 rows of 64 bytes, as Intel's manual describes TILELOADD, TILESTORED and TDPBF16PS.
class EmulatedTiles {
 public:
  EmulatedTiles() {
    ++in_use;
    ++uses;
    std::memset(registers, 0xFF, sizeof(registers));  // NaN
  }
  ~EmulatedTiles() { --in_use; }
  EmulatedTiles(const EmulatedTiles&) = delete;
  EmulatedTiles& operator=(const EmulatedTiles&) = delete;

  template <int t>
  static void zero() {
    std::memset(registers[t], 0, sizeof(registers[t]));
  }
  template <int t>
  static void load(const void* from, std::int64_t stride) {
    EXPECT_EQ(in_use, 1);
    for (int r = 0; r < 16; ++r) std::memcpy(registers[t][r], static_cast<const char*>(from) + r * stride, 64);
  }
  template <int t>
  static void store(void* to, std::int64_t stride) {
    EXPECT_EQ(in_use, 1);
    for (int r = 0; r < 16; ++r) std::memcpy(static_cast<char*>(to) + r * stride, registers[t][r], 64);
  }
  template <int sum, int left, int right>
  static void multiply() {
    for (int r = 0; r < 16; ++r)
      for (int c = 0; c < 16; ++c) {
        auto value = std::bit_cast<float>(registers[sum][r][c]);
        for (int k = 0; k < 16; ++k) value += dot(registers[left][r][k], registers[right][k][c]);
        registers[sum][r][c] = std::bit_cast<std::uint32_t>(value);
      }
  }
  static void transpose(const std::uint32_t* from, std::int64_t stride, std::uint32_t* to) {
    for (int i = 0; i < 16; ++i)
      for (int j = 0; j < 16; ++j) to[i * 16 + j] = from[j * stride + i];
  }

  static inline int in_use = 0, uses = 0;

 private:
  static inline std::uint32_t registers[8][16][16];
};

std::vector<std::uint32_t> random_pairs(std::int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  const auto value = [&] { return std::bit_cast<std::uint32_t>(normal(random)) >> 16; };
  std::vector<std::uint32_t> pairs(static_cast<std::size_t>(count));
  for (auto& pair : pairs) pair = value() | value() << 16;
  return pairs;
}

std::int64_t rest_rows = 0;  // that the emulation of the other kernels was asked for

std::uint32_t pair_of(const ProductTile& tile, std::int64_t row, std::int64_t p) {
  std::uint32_t pair;
  std::memcpy(&pair, tile.x + row * tile.stride + 2 * p, sizeof(pair));
  return pair;
}

void plain_product(const ProductTile& tile) {
  rest_rows += tile.rows;
  for (std::int64_t r = 0; r < tile.rows; ++r)
    for (std::int64_t c = 0; c < kProductPanel; ++c) {
      float& sum = tile.sums[r * kProductPanel + c];
      double value = tile.adds ? sum : 0;
      for (std::int64_t p = 0; p < tile.pairs; ++p)
        value += dot(pair_of(tile, r, p), tile.panel[p * kProductPanel + c]);
      sum = static_cast<float>(value);
    }
}

void plain_gram(const GramTile& tile) {
  rest_rows += tile.rows;
  for (std::int64_t r = 0; r < tile.rows; ++r)
    for (std::int64_t c = 0; c < tile.columns; ++c)
      for (std::int64_t p = 0; p < tile.pairs; ++p)
        tile.gram[r * tile.stride + c] += dot(tile.left[p * kGramPanel + r], tile.right[p * kGramPanel + c]);
}

TEST(AmxProducts, SumRowsTimesPanels) {
  for (const std::int64_t rows : {1, 15, 16, 31, 32, 48, 96, 77})
    for (const std::int64_t pairs : {3, 16, 40, 64})
      for (const bool adds : {false, true}) {
        const std::int64_t stride = 2 * pairs + 6;
        const auto x = random_pairs(rows * stride / 2 + 1, 1), panel = random_pairs(pairs * kProductPanel, 2);
        std::vector<float> sums(static_cast<std::size_t>(rows * kProductPanel) + 8, 0.5f), wanted = sums;
        ProductTile tile{.x = reinterpret_cast<const Bits16*>(x.data()),
                         .stride = stride,
                         .rows = rows,
                         .pairs = pairs,
                         .panel = panel.data(),
                         .sums = wanted.data(),
                         .adds = adds};
        plain_product(tile);
        tile.sums = sums.data();
        rest_rows = EmulatedTiles::uses = 0;
        multiply_product<EmulatedTiles>(tile, plain_product);
        EXPECT_EQ(EmulatedTiles::uses, rows >= 16 && pairs >= 16 ? 1 : 0);
        if (rows % 16 == 0 && pairs % 16 == 0) {
          EXPECT_EQ(rest_rows, 0);
        }
        for (std::size_t i = 0; i < sums.size(); ++i)
          ASSERT_NEAR(sums[i], wanted[i], 1e-4) << rows << " rows, " << pairs << " pairs, element " << i;
      }
}

void plain_attention(const PairProduct& product) {
  rest_rows += product.rows;
  for (std::int64_t r = 0; r < product.rows; ++r)
    for (std::int64_t c = 0; c < product.columns; ++c) {
      double value = 0;
      for (std::int64_t p = 0; p < product.pairs; ++p)
        value += dot(product.left[r * product.left_stride + p], product.right[p * product.right_stride + c]);
      product.sums[r * product.sums_stride + c] = static_cast<float>(value);
    }
}

TEST(AmxProducts, MultiplyBlocksOfAttention) {
  for (const std::int64_t rows : {1, 16, 31, 48, 64})
    for (const std::int64_t columns : {16, 48, 64})
      for (const std::int64_t pairs : {16, 40, 96}) {
        const std::int64_t left_stride = pairs + 3, right_stride = columns + 5, sums_stride = columns + 7;
        const auto left = random_pairs(rows * left_stride, 6), right = random_pairs(pairs * right_stride, 7);
        std::vector<float> sums(static_cast<std::size_t>(rows * sums_stride), 0.5f), wanted = sums;
        PairProduct product{.left = left.data(),
                            .left_stride = left_stride,
                            .right = right.data(),
                            .right_stride = right_stride,
                            .sums = wanted.data(),
                            .sums_stride = sums_stride,
                            .rows = rows,
                            .columns = columns,
                            .pairs = pairs};
        plain_attention(product);
        product.sums = sums.data();
        rest_rows = 0;
        multiply_attention<EmulatedTiles>(product, plain_attention);
        EXPECT_EQ(rest_rows, pairs % 16 == 0 ? rows % 16 : rows);
        for (std::size_t i = 0; i < sums.size(); ++i)
          ASSERT_NEAR(sums[i], wanted[i], 1e-4)
              << rows << " rows, " << columns << " columns, " << pairs << " pairs, element " << i;
      }
}

TEST(AmxProducts, SumGramMatrices) {
  for (const std::int64_t rows : {16, 32, 48, 40})
    for (const std::int64_t columns : {16, 48, 33})
      for (const std::int64_t pairs : {5, 16, 70}) {
        const std::int64_t stride = 61;
        const auto left = random_pairs(pairs * kGramPanel, 3), right = random_pairs(pairs * kGramPanel, 4);
        std::vector<float> gram(static_cast<std::size_t>(48 * stride), 0.25f), wanted = gram;
        GramTile tile{.left = left.data(),
                      .right = right.data(),
                      .pairs = pairs,
                      .gram = wanted.data(),
                      .stride = stride,
                      .rows = rows,
                      .columns = columns};
        plain_gram(tile);
        tile.gram = gram.data();
        rest_rows = EmulatedTiles::uses = 0;
        multiply_gram<EmulatedTiles>(tile, plain_gram);
        if (rows % 16 == 0 && columns % 16 == 0 && pairs % 16 == 0) {
          EXPECT_EQ(rest_rows, 0);
        }
        for (std::size_t i = 0; i < gram.size(); ++i)
          ASSERT_NEAR(gram[i], wanted[i], 1e-4) << rows << " x " << columns << ", " << pairs << " pairs, element " << i;
      }
}

TEST(AmxProducts, LeaveOutTheLowerTriangleOnly) {
  const std::int64_t pairs = 32, stride = kGramPanel;
  const auto panel = random_pairs(pairs * kGramPanel, 5);
  std::vector<float> gram(kGramPanel * kGramPanel), wanted = gram;
  GramTile tile{.left = panel.data(),
                .right = panel.data(),
                .pairs = pairs,
                .gram = wanted.data(),
                .stride = stride,
                .rows = kGramPanel,
                .columns = kGramPanel};
  plain_gram(tile);
  tile.gram = gram.data();
  tile.on_diagonal = true;
  multiply_gram<EmulatedTiles>(tile, plain_gram);
  for (std::int64_t r = 0; r < kGramPanel; ++r)
    for (std::int64_t c = r; c < kGramPanel; ++c) ASSERT_NEAR(gram[r * stride + c], wanted[r * stride + c], 1e-4);
  EXPECT_EQ(gram[20 * stride + 3], 0);
}

}  // namespace
}  // namespace layerpress::kernels::cpu
