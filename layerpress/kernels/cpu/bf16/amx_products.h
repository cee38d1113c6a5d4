#pragma once

#include "layerpress/kernels/cpu/pair_product.h"
#include "layerpress/kernels/cpu/table.h"

// Products of bf16 with the tile registers of AMX. Templates, so that a test runs them on an emulation of the tiles on machines
// that have none. A class of tiles has eight registers of 16 rows of 64 bytes; constructing it makes the registers
// usable on this thread, destroying it releases them. Its static functions, for constant numbers of registers:
//   zero<t>(), load<t>(from, stride), store<t>(to, stride)   strides in bytes
//   multiply<sum, left, right>()     sum[16, 16] in fp32 += left [16, 16 pairs of bf16] right [16 pairs, 16]
//   transpose(from, stride, to)      to[i][j] = from[j * stride + i] of 16 x 16 pairs
namespace layerpress::kernels::cpu {

constexpr std::int64_t kTileRows = 16;  // rows of a tile, and columns of 32 bits
constexpr std::int64_t kPairBytes = 4;  // two bf16, or one fp32

/// The pairs of features that fill tiles; the rest is left to other kernels.
constexpr std::int64_t whole_tiles(std::int64_t count) { return count / kTileRows * kTileRows; }

/// The first 16 * rows sums by 16 * columns, for pairs that fill tiles; `adds`: += instead of =. Registers 0 to 3 hold sums, 4 and 5
/// rows of the left side, 6 and 7 columns of the right one.
template <class Tiles, int rows, int columns>
void multiply_blocks(const PairProduct& product, bool adds) {
  const std::int64_t left_bytes = product.left_stride * kPairBytes, right_bytes = product.right_stride * kPairBytes,
                     sums_bytes = product.sums_stride * kPairBytes;
  const std::uint32_t *left = product.left, *right = product.right;
  float *upper = product.sums, *lower = upper + kTileRows * product.sums_stride;
  if (adds) {
    Tiles::template load<0>(upper, sums_bytes);
    if constexpr (columns == 2) Tiles::template load<1>(upper + kTileRows, sums_bytes);
    if constexpr (rows == 2) Tiles::template load<2>(lower, sums_bytes);
    if constexpr (rows == 2 && columns == 2) Tiles::template load<3>(lower + kTileRows, sums_bytes);
  } else {
    Tiles::template zero<0>();
    if constexpr (columns == 2) Tiles::template zero<1>();
    if constexpr (rows == 2) Tiles::template zero<2>();
    if constexpr (rows == 2 && columns == 2) Tiles::template zero<3>();
  }
  for (std::int64_t p = 0; p < whole_tiles(product.pairs); p += kTileRows) {
    Tiles::template load<6>(right, right_bytes);
    Tiles::template load<4>(left, left_bytes);
    Tiles::template multiply<0, 4, 6>();
    if constexpr (columns == 2) {
      Tiles::template load<7>(right + kTileRows, right_bytes);
      Tiles::template multiply<1, 4, 7>();
    }
    if constexpr (rows == 2) {
      Tiles::template load<5>(left + kTileRows * product.left_stride, left_bytes);
      Tiles::template multiply<2, 5, 6>();
      if constexpr (columns == 2) Tiles::template multiply<3, 5, 7>();
    }
    left += kTileRows;
    right += kTileRows * product.right_stride;
  }
  Tiles::template store<0>(upper, sums_bytes);
  if constexpr (columns == 2) Tiles::template store<1>(upper + kTileRows, sums_bytes);
  if constexpr (rows == 2) Tiles::template store<2>(lower, sums_bytes);
  if constexpr (rows == 2 && columns == 2) Tiles::template store<3>(lower + kTileRows, sums_bytes);
}

/// All sums, for rows and columns that fill tiles.
template <class Tiles>
void multiply_all_blocks(const PairProduct& product, bool adds) {
  for (std::int64_t row = 0; row < product.rows; row += 2 * kTileRows)
    for (std::int64_t column = 0; column < product.columns; column += 2 * kTileRows) {
      PairProduct part = product;
      part.left += row * product.left_stride;
      part.right += column;
      part.sums += row * product.sums_stride + column;
      const bool two_rows = product.rows - row > kTileRows, two_columns = product.columns - column > kTileRows;
      if (two_rows)
        two_columns ? multiply_blocks<Tiles, 2, 2>(part, adds) : multiply_blocks<Tiles, 2, 1>(part, adds);
      else
        two_columns ? multiply_blocks<Tiles, 1, 2>(part, adds) : multiply_blocks<Tiles, 1, 1>(part, adds);
    }
}

/// As Table::product_tile. `rest` does the same for rows and pairs that fill no tile.
template <class Tiles>
void multiply_product(const ProductTile& tile, void (*rest)(const ProductTile&)) {
  const std::int64_t rows = whole_tiles(tile.rows), pairs = whole_tiles(tile.pairs);
  if (pairs == 0) return rest(tile);
  if (rows > 0) {
    const Tiles usable;
    multiply_all_blocks<Tiles>({.left = reinterpret_cast<const std::uint32_t*>(tile.x),
                                .left_stride = tile.stride / 2,
                                .right = tile.panel,
                                .right_stride = kProductPanel,
                                .sums = tile.sums,
                                .sums_stride = kProductPanel,
                                .rows = rows,
                                .columns = kProductPanel,
                                .pairs = pairs},
                               tile.adds);
  }
  if (rows > 0 && pairs < tile.pairs) {
    ProductTile last = tile;
    last.rows = rows;
    last.x += 2 * pairs;
    last.panel += pairs * kProductPanel;
    last.pairs -= pairs;
    last.adds = true;
    rest(last);
  }
  if (rows < tile.rows) {
    ProductTile below = tile;
    below.x += rows * tile.stride;
    below.sums += rows * kProductPanel;
    below.rows -= rows;
    rest(below);
  }
}

/// As attention's products. `rest` does the same for rows that fill no tile, and for pairs that do not.
template <class Tiles>
void multiply_attention(const PairProduct& product, void (*rest)(const PairProduct&)) {
  const std::int64_t rows = product.pairs % kTileRows == 0 ? whole_tiles(product.rows) : 0;
  if (rows > 0) {
    const Tiles usable;
    PairProduct whole = product;
    whole.rows = rows;
    multiply_all_blocks<Tiles>(whole, /*adds=*/false);
  }
  if (rows == product.rows) return;
  PairProduct below = product;
  below.left += rows * product.left_stride;
  below.sums += rows * product.sums_stride;
  below.rows -= rows;
  rest(below);
}

/// gram[16, 16 * blocks] += 16 left columns times `blocks` times 16 right ones, over pairs of tokens that fill tiles. Register 3 holds the
/// left columns, which are transposed: their pairs of tokens lie beside each other.
template <class Tiles, int blocks>
void multiply_gram_strip(const std::uint32_t* left, const std::uint32_t* right, std::int64_t pairs, float* gram,
                         std::int64_t stride) {
  constexpr std::int64_t kPanelStride = kGramPanel * kPairBytes;
  alignas(64)
      std::uint32_t transposed[2][kTileRows * kTileRows];  // two, so that one is written while the other is read
  const std::int64_t gram_stride = stride * kPairBytes;
  Tiles::template load<0>(gram, gram_stride);
  if constexpr (blocks > 1) Tiles::template load<1>(gram + kTileRows, gram_stride);
  if constexpr (blocks > 2) Tiles::template load<2>(gram + 2 * kTileRows, gram_stride);
  for (std::int64_t p = 0; p < pairs; p += kTileRows) {
    std::uint32_t* block = transposed[p / kTileRows % 2];
    Tiles::transpose(left + p * kGramPanel, kGramPanel, block);
    Tiles::template load<3>(block, kTileRows * kPairBytes);
    const std::uint32_t* columns = right + p * kGramPanel;
    Tiles::template load<4>(columns, kPanelStride);
    Tiles::template multiply<0, 3, 4>();
    if constexpr (blocks > 1) {
      Tiles::template load<5>(columns + kTileRows, kPanelStride);
      Tiles::template multiply<1, 3, 5>();
    }
    if constexpr (blocks > 2) {
      Tiles::template load<6>(columns + 2 * kTileRows, kPanelStride);
      Tiles::template multiply<2, 3, 6>();
    }
  }
  Tiles::template store<0>(gram, gram_stride);
  if constexpr (blocks > 1) Tiles::template store<1>(gram + kTileRows, gram_stride);
  if constexpr (blocks > 2) Tiles::template store<2>(gram + 2 * kTileRows, gram_stride);
}

/// As Table::gram_tile. `rest` does the same for pairs that fill no tile, and for panels with a part of 16 columns.
template <class Tiles>
void multiply_gram(const GramTile& tile, void (*rest)(const GramTile&)) {
  const std::int64_t pairs = whole_tiles(tile.pairs);
  if (pairs == 0 || tile.rows % kTileRows != 0 || tile.columns % kTileRows != 0) return rest(tile);
  {
    const Tiles usable;
    for (std::int64_t row = 0; row < tile.rows; row += kTileRows) {
      const std::int64_t first = tile.on_diagonal ? row : 0;  // earlier columns are below the diagonal
      const std::uint32_t *left = tile.left + row, *right = tile.right + first;
      float* gram = tile.gram + row * tile.stride + first;
      switch ((tile.columns - first) / kTileRows) {
        case 1:
          multiply_gram_strip<Tiles, 1>(left, right, pairs, gram, tile.stride);
          break;
        case 2:
          multiply_gram_strip<Tiles, 2>(left, right, pairs, gram, tile.stride);
          break;
        case 3:
          multiply_gram_strip<Tiles, 3>(left, right, pairs, gram, tile.stride);
          break;
        default:
          break;
      }
    }
  }
  if (pairs == tile.pairs) return;
  GramTile last = tile;
  last.left += pairs * kGramPanel;
  last.right += pairs * kGramPanel;
  last.pairs -= pairs;
  rest(last);
}

}  // namespace layerpress::kernels::cpu
