#include "layerpress/kernels/column_tiles.h"

#include <numeric>
#include <vector>

#include "layerpress/kernels/cpu/table.h"

namespace layerpress::kernels {

static_assert(kTileRows == cpu::kColumnTile && kMostTileColumns == cpu::kMaximumBlock);

void load_tile(const float* weights, std::int64_t rows, std::int64_t columns, float* tile) {
  std::vector<std::int64_t> place(static_cast<std::size_t>(columns));
  std::iota(place.begin(), place.end(), 0);
  cpu::table().column_tile_load(weights, rows, columns, place.data(), tile);
}

void add_earlier_columns(const TileFeedback& columns, float* running) {
  cpu::ColumnBlockTask task;
  task.begin = columns.begin;
  task.end = columns.end;
  task.residual = const_cast<float*>(columns.tile);  // which column_block_begin only reads
  task.feedback = columns.feedback + columns.begin;
  task.feedback_stride = columns.stride;
  cpu::table().column_block_begin(task, running);
}

}  // namespace layerpress::kernels
