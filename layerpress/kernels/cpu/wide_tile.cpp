// Tiles of leftᵀ right in fp32. Every sum runs over the depth in its order, one product after the other, whatever else
// is computed beside it.
#include "layerpress/kernels/cpu/wide_tile.h"

namespace layerpress::kernels::cpu::LAYERPRESS_ISA {
namespace {

// Steps of the depth for which panels stay in the first-level cache.
constexpr std::int64_t kDepth = 256;

/// sums[rows, registers of columns] = or += the product of some rows of the left panel with some columns of the right.
struct Part {
  const float* left;
  const float* right;
  std::int64_t left_stride, right_stride, right_block, depth;
  float* sums;
  std::int64_t stride;
  bool adds;
};

template <int rows, int registers>
void accumulate(const Part& part) {
  WideVector sum[rows][registers];
  for (int r = 0; r < rows; ++r)
    for (int n = 0; n < registers; ++n)
      sum[r][n] = part.adds ? load_wide(part.sums + r * part.stride + n * kWideLanes) : WideVector{};
  const float* left = part.left;
  const float* right[registers];
  for (int n = 0; n < registers; ++n) {
    constexpr int kPerBlock = static_cast<int>(kWideColumns) / kWideLanes;
    right[n] = part.right + n / kPerBlock * part.right_block + n % kPerBlock * kWideLanes;
  }
  for (std::int64_t d = 0; d < part.depth; ++d, left += part.left_stride) {
    WideVector columns[registers];
    for (int n = 0; n < registers; ++n) {
      columns[n] = load_wide(right[n]);
      right[n] += part.right_stride;
    }
    for (int r = 0; r < rows; ++r)
      for (int n = 0; n < registers; ++n) sum[r][n] += columns[n] * left[r];
  }
  for (int r = 0; r < rows; ++r)
    for (int n = 0; n < registers; ++n) store_wide(part.sums + r * part.stride + n * kWideLanes, sum[r][n]);
}

using Accumulate = void (*)(const Part&);

template <int registers>
Accumulate kernel_for(std::int64_t rows) {
  constexpr Accumulate kKernels[] = {accumulate<1, registers>, accumulate<2, registers>, accumulate<3, registers>,
                                     accumulate<4, registers>, accumulate<5, registers>, accumulate<6, registers>,
                                     accumulate<7, registers>, accumulate<8, registers>};
  static_assert(kWideRows <= 8);
  return kKernels[rows - 1];
}

void run(const Part& part, std::int64_t rows, int registers) {
  if constexpr (kWideRegisters >= 3)
    if (registers == 3) return kernel_for<3>(rows)(part);
  if (registers == 2) return kernel_for<2>(rows)(part);
  kernel_for<1>(rows)(part);
}

/// The same where fewer columns exist than the registers have: through memory beside.
void run_partly(const Part& part, std::int64_t rows, int registers, std::int64_t columns) {
  alignas(64) float beside[kWideRows * kWideRegisters * kWideLanes] = {};
  constexpr std::int64_t kStride = kWideRegisters * kWideLanes;
  const std::size_t bytes = static_cast<std::size_t>(columns) * sizeof(float);
  Part whole = part;
  whole.sums = beside;
  whole.stride = kStride;
  if (part.adds)
    for (std::int64_t r = 0; r < rows; ++r) std::memcpy(beside + r * kStride, part.sums + r * part.stride, bytes);
  run(whole, rows, registers);
  for (std::int64_t r = 0; r < rows; ++r) std::memcpy(part.sums + r * part.stride, beside + r * kStride, bytes);
}

/// Rows [row, row + rows) of the tile for some steps of the depth.
void multiply_rows(const WideTile& tile, const Part& steps, std::int64_t row, std::int64_t rows) {
  constexpr std::int64_t kMost = kWideRegisters * kWideLanes;
  // Earlier columns are below the diagonal.
  const std::int64_t first = tile.on_diagonal ? row / kWideLanes * kWideLanes : 0;
  for (std::int64_t column = first; column < tile.columns; column += kMost) {
    const std::int64_t columns = tile.columns - column < kMost ? tile.columns - column : kMost;
    const auto registers = static_cast<int>((columns + kWideLanes - 1) / kWideLanes);
    Part part = steps;
    part.left += row / kWideRows * tile.left_group;
    part.right += column / kWideColumns * tile.right_block + column % kWideColumns;
    part.sums += row * tile.stride + column;
    if (columns % kWideLanes == 0)
      run(part, rows, registers);
    else
      run_partly(part, rows, registers, columns);
  }
}

}  // namespace

void wide_tile(const WideTile& tile) {
  for (std::int64_t depth = 0; depth < tile.depth || depth == 0; depth += kDepth) {
    const Part steps{.left = tile.left + depth * tile.left_stride,
                     .right = tile.right + depth * tile.right_stride,
                     .left_stride = tile.left_stride,
                     .right_stride = tile.right_stride,
                     .right_block = tile.right_block,
                     .depth = tile.depth - depth < kDepth ? tile.depth - depth : kDepth,
                     .sums = tile.sums,
                     .stride = tile.stride,
                     .adds = tile.adds || depth > 0};
    for (std::int64_t row = 0; row < tile.rows; row += kWideRows)
      multiply_rows(tile, steps, row, tile.rows - row < kWideRows ? tile.rows - row : kWideRows);
  }
}

}  // namespace layerpress::kernels::cpu::LAYERPRESS_ISA
