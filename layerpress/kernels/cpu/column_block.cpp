#include "layerpress/kernels/cpu/codebooks.h"
#include "layerpress/kernels/cpu/quantization.h"

namespace layerpress::kernels::cpu::LAYERPRESS_ISA {
namespace {

constexpr std::int64_t kLanes = 16;  // rows that go through the recursion side by side

/// One tile of kLanes rows, column-major, so that each step of the recursion is a vector operation over rows.
struct Tile {
  alignas(64) float running[kMaximumBlock][kLanes];
  alignas(64) float residual[kMaximumBlock][kLanes];
  alignas(64) float codes[kMaximumBlock][kLanes];
  alignas(64) float scale[kMaximumBlock][kLanes];
  alignas(64) float zero_point[kMaximumBlock][kLanes];
};

void load(const ColumnBlockTask& task, std::int64_t first_row, std::int64_t rows, Tile& tile) {
  for (std::int64_t lane = 0; lane < kLanes; ++lane) {
    // Lanes beyond the last row repeat it; their results are not stored.
    const std::int64_t row = first_row + (lane < rows ? lane : rows - 1);
    const float* running = task.running + row * task.running_stride;
    const float* residual = task.residual + row * task.residual_stride;
    const float* scales = task.scales + row * task.groups;
    const float* zero_points = task.zero_points == nullptr ? nullptr : task.zero_points + row * task.groups;
    for (std::int64_t j = 0; j < task.columns; ++j) {
      tile.running[j][lane] = running[j];
      tile.residual[j][lane] = residual[j];
      tile.scale[j][lane] = scales[task.group_of_column[j]];
      tile.zero_point[j][lane] = zero_points == nullptr ? 0.0f : zero_points[task.group_of_column[j]];
    }
  }
}

template <typename Levels>
void recurse(const ColumnBlockTask& task, const Levels& levels, Tile& tile, float* loss) {
  for (std::int64_t j = 0; j < task.columns; ++j) {
    alignas(64) float residual[kLanes];
    for (std::int64_t lane = 0; lane < kLanes; ++lane) {
      const float scale = tile.scale[j][lane], zero_point = tile.zero_point[j][lane], x = tile.running[j][lane];
      const float level = levels.level(x / scale, zero_point);
      const float value = levels.value(level, zero_point) * scale;
      residual[lane] = tile.residual[j][lane] - value;
      tile.residual[j][lane] = residual[lane];
      tile.codes[j][lane] = level;
      loss[lane] += task.pivots[j] * (x - value) * (x - value);
    }
    const float* feedback = task.feedback + j * task.feedback_stride;
    for (std::int64_t later = j + 1; later < task.columns; ++later) {
      const float factor = feedback[later];
      for (std::int64_t lane = 0; lane < kLanes; ++lane) tile.running[later][lane] += residual[lane] * factor;
    }
  }
}

template <typename Levels>
void store(const ColumnBlockTask& task, const Levels& levels, std::int64_t first_row, std::int64_t rows,
           const Tile& tile) {
  for (std::int64_t lane = 0; lane < rows; ++lane) {
    float* residual = task.residual + (first_row + lane) * task.residual_stride;
    std::int8_t* codes = task.codes + (first_row + lane) * task.codes_stride;
    for (std::int64_t j = 0; j < task.columns; ++j) {
      residual[j] = tile.residual[j][lane];
      codes[j] = levels.encode(tile.codes[j][lane]);
    }
  }
}

}  // namespace

double column_block(const ColumnBlockTask& task) {
  return with_levels(task.codebook, [&](auto levels) {
    Tile tile;
    double total = 0;
    for (std::int64_t row = 0; row < task.rows; row += kLanes) {
      const std::int64_t rows = task.rows - row < kLanes ? task.rows - row : kLanes;
      alignas(64) float loss[kLanes] = {};
      load(task, row, rows, tile);
      recurse(task, levels, tile, loss);
      store(task, levels, row, rows, tile);
      for (std::int64_t lane = 0; lane < rows; ++lane) total += static_cast<double>(loss[lane]);
    }
    return total;
  });
}

}  // namespace layerpress::kernels::cpu::LAYERPRESS_ISA
