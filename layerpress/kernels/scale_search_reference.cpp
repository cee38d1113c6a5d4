#include <ATen/ATen.h>

#include "layerpress/kernels/scale_search.h"

namespace layerpress::kernels {
namespace {

std::int64_t blocks(std::int64_t size, std::int64_t block) { return (size + block - 1) / block; }

/// Sums a [rows, columns] tensor over blocks.
at::Tensor reduce_blocks(const at::Tensor& x, const ScaleGrid& grid, bool maximum) {
  const std::int64_t row_blocks = blocks(x.size(0), grid.block_rows),
                     column_blocks = blocks(x.size(1), grid.block_columns);
  const at::Tensor padded = at::constant_pad_nd(
      x, {0, column_blocks * grid.block_columns - x.size(1), 0, row_blocks * grid.block_rows - x.size(0)}, 0);
  const at::Tensor tiles = padded.reshape({row_blocks, grid.block_rows, column_blocks, grid.block_columns});
  return maximum ? tiles.amax({1, 3}) : tiles.sum({1, 3});
}

}  // namespace

at::Tensor spread_blocks(const at::Tensor& per_block, const ScaleGrid& grid, std::int64_t rows, std::int64_t columns) {
  return per_block.repeat_interleave(grid.block_rows, 0)
      .slice(0, 0, rows)
      .repeat_interleave(grid.block_columns, 1)
      .slice(1, 0, columns);
}

ChosenScales qparams_of(const at::Tensor& minimum, const at::Tensor& maximum, double shrink, const RangeRule& rule,
                        at::ScalarType stored) {
  const double low = rule.codebook.minimum, high = rule.codebook.maximum;
  const at::Tensor a = minimum * shrink, b = maximum * shrink;
  at::Tensor scale = rule.symmetric || rule.codebook.fp8
                         ? at::maximum(-a, b) / (rule.codebook.fp8 ? 448.0 : (high - low) / 2)
                         : (b - a) / (high - low);
  scale = scale.to(stored).to(at::kFloat);
  scale = at::where(scale == 0, at::full_like(scale, smallest_scale(stored)), scale);
  return {scale, rule.symmetric ? at::Tensor() : (low - a / scale).clamp(low, high).round()};
}

ChosenScales search_scales_reference(const at::Tensor& weight, const ScaleGrid& grid, const RangeRule& rule,
                                     const ScaleSearch& search, at::ScalarType stored, const at::Tensor& importance) {
  const at::Tensor wide = weight.to(at::kFloat);
  const std::int64_t rows = wide.size(0), columns = wide.size(1);
  const at::Tensor maximum = reduce_blocks(wide, grid, true).clamp_min(0);
  const at::Tensor minimum = reduce_blocks(-wide, grid, true).clamp_min(0).neg();
  ChosenScales best;
  at::Tensor best_error, idle;
  for (const double factor : search.shrink) {
    const auto [scale, zero] = qparams_of(minimum, maximum, factor, rule, stored);
    const at::Tensor full_scale = spread_blocks(scale, grid, rows, columns);
    const at::Tensor full_zero = zero.defined() ? spread_blocks(zero, grid, rows, columns) : at::Tensor();
    const at::Tensor level = nearest_level(wide, full_scale, full_zero, rule.codebook);
    at::Tensor error = (level_value(level, full_scale, full_zero) - wide).abs().pow(search.exponent);
    if (importance.defined()) error = error * importance.to(at::kFloat);
    error = reduce_blocks(error, grid, false);
    if (!best_error.defined()) {
      best = {scale, zero};
      best_error = error;
      idle = at::zeros_like(error);
      continue;
    }
    at::Tensor better = error < best_error;
    if (search.patience > 0) better = better.logical_and(idle < search.patience);
    idle = at::where(better, at::zeros_like(idle), idle + 1);
    best_error = at::where(better, error, best_error);
    best.scale = at::where(better, scale, best.scale);
    if (zero.defined()) best.zero_point = at::where(better, zero, best.zero_point);
  }
  return best;
}

}  // namespace layerpress::kernels
