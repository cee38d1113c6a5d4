#include "layerpress/gguf/blocks/block_columns.h"

#include <algorithm>
#include <cstring>

namespace layerpress::gguf {
namespace {

constexpr int kStrip = 8;  // columns that feed back to each other one by one

/// The grid of a group of columns.
struct GroupLanes {
  TileLanes scales, minimums;
};

using BlockGrid = std::array<GroupLanes, kMostGroups>;

void load_grid(const GridShape& shape, const std::array<BlockContents, kLaneCount>& contents, BlockGrid& grid) {
  for (int g = 0; g < shape.groups(); ++g) {
    GroupLanes& group = grid[static_cast<std::size_t>(g)];
    for (std::size_t lane = 0; lane < kLaneCount; ++lane) {
      group.scales[lane] = contents[lane].scale_of(g);
      group.minimums[lane] = contents[lane].minimum_of(g);
    }
  }
}

/// Levels and codes of a column, as floats; NaN, where the scale is 0, becomes the first level.
void nearest_consecutive(const GridShape& shape, const GroupLanes& group, const float* running, float* levels,
                         float* codes) {
  const auto lowest = static_cast<float>(shape.lowest), greatest = lowest + static_cast<float>(shape.codes - 1);
  for (std::size_t lane = 0; lane < kLaneCount; ++lane) {
    const float wanted = (running[lane] + group.minimums[lane]) / group.scales[lane];
    const float whole = (wanted + 12582912.0f) - 12582912.0f;
    const float level = whole > lowest ? whole : lowest;
    levels[lane] = level < greatest ? level : greatest;
    codes[lane] = levels[lane] - lowest;
  }
}

void nearest_of_levels(const GridShape& shape, const GroupLanes& group, const float* running, float* levels,
                       float* codes) {
  for (std::size_t lane = 0; lane < kLaneCount; ++lane) {
    levels[lane] = running[lane] / group.scales[lane];
    codes[lane] = 0;
  }
  for (int l = 1; l < shape.codes; ++l) {
    const float border = 0.5f * (shape.levels[l - 1] + shape.levels[l]);
    for (std::size_t lane = 0; lane < kLaneCount; ++lane) codes[lane] += levels[lane] >= border ? 1.0f : 0.0f;
  }
  for (std::size_t lane = 0; lane < kLaneCount; ++lane) levels[lane] = shape.levels[static_cast<int>(codes[lane])];
}

/// The state of the recursion inside a block.
struct Recursion {
  alignas(64) BlockLanes work;  // residuals of columns that are done, then running values
  alignas(64) TileLanes strip[kStrip];
  std::uint8_t codes[kMostBlockValues][kLaneCount];
};

void round_column(const GridShape& shape, const GroupLanes& group, const float* running, float pivot,
                  const float* original, float* residual, float* loss, std::uint8_t* codes) {
  TileLanes levels, chosen;
  if (shape.levels != nullptr)
    nearest_of_levels(shape, group, running, levels, chosen);
  else
    nearest_consecutive(shape, group, running, levels, chosen);
  for (std::size_t lane = 0; lane < kLaneCount; ++lane) {
    const float value = group.scales[lane] * levels[lane] - group.minimums[lane], error = running[lane] - value;
    residual[lane] = original[lane] - value;
    loss[lane] += pivot * error * error;
    codes[lane] = static_cast<std::uint8_t>(chosen[lane]);
  }
}

}  // namespace

void round_columns(const GridShape& shape, const BlockColumns& columns, const BlockTile& tile, RoundedTile& rounded) {
  Recursion state;
  std::memcpy(state.work, tile.running, sizeof(TileLanes) * static_cast<std::size_t>(columns.count));
  rounded.loss.fill(0);
  BlockGrid grid;
  load_grid(shape, rounded.contents, grid);
  for (int begin = 0; begin < columns.count; begin += kStrip) {
    kernels::add_earlier_columns({state.work[0], columns.feedback, columns.stride, begin, begin + kStrip},
                                 state.strip[0]);
    for (int j = begin; j < begin + kStrip; ++j) {
      float* residual = state.work[j];
      std::memcpy(rounded.fed[j], state.strip[j - begin], sizeof(TileLanes));
      const GroupLanes& group = grid[columns.place(j) / static_cast<std::size_t>(shape.group)];
      round_column(shape, group, state.strip[j - begin], columns.pivots[j], tile.originals[j], residual,
                   rounded.loss.data(), state.codes[j]);
      for (int later = j + 1; later < begin + kStrip; ++later) {
        const float factor = columns.feedback[j * columns.stride + later];
        for (std::size_t lane = 0; lane < kLaneCount; ++lane)
          state.strip[later - begin][lane] += residual[lane] * factor;
      }
    }
  }
  std::memcpy(rounded.residual, state.work, sizeof(TileLanes) * static_cast<std::size_t>(columns.count));
  for (std::size_t lane = 0; lane < kLaneCount; ++lane)
    for (int j = 0; j < columns.count; ++j) rounded.contents[lane].codes[columns.place(j)] = state.codes[j][lane];
}

void keep_better(int columns, const RoundedTile& other, RoundedTile& kept) {
  for (std::size_t lane = 0; lane < kLaneCount; ++lane) {
    if (!(other.loss[lane] < kept.loss[lane])) continue;
    kept.loss[lane] = other.loss[lane];
    kept.contents[lane] = other.contents[lane];
    for (int j = 0; j < columns; ++j) kept.residual[j][lane] = other.residual[j][lane];
  }
}

}  // namespace layerpress::gguf
