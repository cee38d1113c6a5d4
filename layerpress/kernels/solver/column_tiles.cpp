#include "layerpress/kernels/solver/column_tiles.h"

#include "layerpress/kernels/cpu/table.h"

namespace layerpress::kernels {

static_assert(kTileRows == cpu::kColumnTile && kMostTileColumns == cpu::kMaximumBlock);

void load_tile(const float* weights, std::int64_t rows, std::int64_t columns, const std::int64_t* place, float* tile) {
  cpu::table().column_tile_load(weights, rows, columns, place, tile);
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
