#pragma once

#include <array>
#include <cstdint>

#include "layerpress/gguf/blocks/grid_type.h"
#include "layerpress/kernels/solver/column_tiles.h"

namespace layerpress::gguf {

constexpr std::size_t kLaneCount = kernels::kTileRows;

/// A value of each row of a tile.
using TileLanes = float[kLaneCount];
using BlockLanes = TileLanes[kMostBlockValues];

/// The columns of one block, in the order in which they are rounded.
struct BlockColumns {
  int count = 0;
  const std::int64_t* order = nullptr;  ///< [count]: of a row; they fill one block
  const float* feedback = nullptr;      ///< of the first column for itself and those after it, [count, stride]
  std::int64_t stride = 0;
  const float* pivots = nullptr;  ///< [count]

  /// The place in the block of the column that is rounded as number j.
  std::size_t place(int j) const { return static_cast<std::size_t>(order[j] % count); }
};

/// The columns of a block on their way to codes, for some rows.
struct BlockTile {
  alignas(64) BlockLanes originals;
  alignas(64) BlockLanes running;  ///< originals with the feedback of all columns before the block
};

/// What the columns of a block become.
struct RoundedTile {
  alignas(64) BlockLanes residual;  ///< originals minus values
  alignas(64) BlockLanes fed;       ///< what was rounded: originals with the feedback of all earlier columns
  std::array<BlockContents, kLaneCount> contents;
  std::array<float, kLaneCount> loss;
};

/// Rounds the columns one after the other to the grids of the rows' contents, whose codes it sets. Sums pivot * (column with all
/// feedback - value)^2.
void round_columns(const GridShape& shape, const BlockColumns& columns, const BlockTile& tile, RoundedTile& rounded);

/// Replaces the rows of `kept` that have more loss than those of `other`.
void keep_better(int columns, const RoundedTile& other, RoundedTile& kept);

}  // namespace layerpress::gguf
