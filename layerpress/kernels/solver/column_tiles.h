#pragma once

#include <cstdint>

// The parts of GPTQ's recursion that do not depend on what values are rounded to. A tile holds some rows transposed, [columns,
// kTileRows], 64-byte aligned.
namespace layerpress::kernels {

constexpr std::int64_t kTileRows = 32;
constexpr std::int64_t kMostTileColumns = 128;

/// Transposes rows [rows, columns], at most kTileRows of them, into a tile, whose lanes beyond the last row repeat it. Column j becomes
/// row place[j] of the tile.
void load_tile(const float* weights, std::int64_t rows, std::int64_t columns, const std::int64_t* place, float* tile);

/// Columns of a tile, and what columns before them feed back.
struct TileFeedback {
  const float* tile = nullptr;      ///< residuals for columns before `begin`, starting values from there on
  const float* feedback = nullptr;  ///< of the tile's first column for itself and those after it, [columns, stride]
  std::int64_t stride = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;  ///< at most begin + kMostTileColumns
};

/// Computes running [end - begin, kTileRows], 64-byte aligned: the starting values plus the feedback of all earlier columns. A row has
/// the same bits whatever other rows the tile has.
void add_earlier_columns(const TileFeedback& columns, float* running);

}  // namespace layerpress::kernels
