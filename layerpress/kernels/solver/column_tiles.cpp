#include "layerpress/kernels/solver/column_tiles.h"

#include <algorithm>

#include "layerpress/kernels/cpu/table.h"

namespace layerpress::kernels {

static_assert(kTileRows == cpu::kColumnTile && kMostTileColumns == cpu::kMaximumBlock);

void load_tile(const float* weights, std::int64_t rows, std::int64_t columns, const std::int64_t* place, float* tile) {
  cpu::table().column_tile_load(weights, rows, columns, place, tile);
}

void add_earlier_columns(const TileFeedback& columns, float* running) {
  const std::int64_t count = columns.end - columns.begin;
  std::copy_n(columns.tile + columns.begin * kTileRows, count * kTileRows, running);
  for (std::int64_t first = 0; first < columns.begin; first += cpu::kColumnDepth)
    cpu::table().column_block_add({.residual = columns.tile + first * kTileRows,
                                   .count = std::min(cpu::kColumnDepth, columns.begin - first),
                                   .factors = columns.feedback + first * columns.stride + columns.begin,
                                   .stride = columns.stride,
                                   .columns = count},
                                  running);
}

}  // namespace layerpress::kernels
