#pragma once

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "layerpress/kernels/cpu/table.h"
#include "layerpress/kernels/solver/gptq.h"

namespace layerpress::kernels {

/// With at most so many columns, a matrix [columns, columns] stays in the caches near a core, and tiles are processed one at a time. With
/// more columns, several tiles share each part of the matrix, read from a contiguous copy that stays there.
constexpr std::int64_t kCachedColumns = 1024;

/// The number of tiles that a task processes together; fewer if threads would be idle otherwise.
inline std::int64_t tiles_together(std::int64_t columns, std::int64_t tiles) {
  constexpr std::int64_t kMostTilesTogether = 8;
  if (columns <= kCachedColumns) return 1;
  const std::int64_t tasks_wanted = 2 * at::get_num_threads();
  return std::clamp<std::int64_t>((tiles + tasks_wanted - 1) / tasks_wanted, 1, kMostTilesTogether);
}

/// At most cpu::kColumnTile consecutive rows of one weight.
struct RowTile {
  std::size_t weight = 0;
  std::int64_t first = 0;
  std::int64_t rows = 0;
};

inline std::vector<RowTile> cut_into_tiles(const std::vector<GptqWeight>& weights) {
  std::vector<RowTile> tiles;
  for (std::size_t w = 0; w < weights.size(); ++w) {
    const std::int64_t rows = weights[w].weight.size(0);
    for (std::int64_t first = 0; first < rows; first += cpu::kColumnTile)
      tiles.push_back({w, first, std::min(cpu::kColumnTile, rows - first)});
  }
  return tiles;
}

}  // namespace layerpress::kernels
