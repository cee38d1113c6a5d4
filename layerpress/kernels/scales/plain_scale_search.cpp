#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "layerpress/kernels/scales/scale_search.h"
#include "layerpress/kernels/scales/search_patience.h"

namespace layerpress::kernels {
namespace {

constexpr std::int64_t kPlainElements = 1 << 23;

/// Sums a [rows, columns] tensor over blocks.
at::Tensor reduce_blocks(const at::Tensor& x, const ScaleGrid& grid, bool maximum) {
  const std::int64_t row_blocks = blocks_of(x.size(0), grid.block_rows),
                     column_blocks = blocks_of(x.size(1), grid.block_columns);
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

namespace {

at::ScalarType dtype_of(ScaleType type) {
  switch (type) {
    case ScaleType::kBf16:
      return at::kBFloat16;
    case ScaleType::kHalf:
      return at::kHalf;
    case ScaleType::kE4m3:
      return at::kFloat8_e4m3fn;
    default:
      return at::kFloat;
  }
}

at::Tensor rounded_to(const at::Tensor& x, ScaleType type) { return x.to(dtype_of(type)).to(at::kFloat); }

/// Divides by a tensor, because devices multiply by the reciprocal of a number.
at::Tensor divided(const at::Tensor& x, double by) { return x / at::scalar_tensor(by, x.options()); }

/// power_scale() by the bits of fp32 values.
at::Tensor power_scales(const at::Tensor& range, double levels) {
  const at::Tensor exponent = range.contiguous().view(at::kInt).add(0x200000).bitwise_right_shift(23);
  const at::Tensor byte = exponent.sub_(std::ilogb(levels)).clamp_(0, 254);
  return at::where(byte == 0, 0x00400000, byte.bitwise_left_shift(23)).to(at::kInt).view(at::kFloat);
}

/// stored_scale() with ATen operations.
at::Tensor stored_scales(const ScaleFormat& format, const at::Tensor& range, double levels) {
  if (format.type == ScaleType::kE8m0) return power_scales(range, levels);
  at::Tensor scale = divided(range, levels);
  if (format.type == ScaleType::kE4m3) {
    const at::Tensor wide = rounded_to(scale, format.computed) * format.global;
    scale = rounded_to(wide.clamp_max(kLargestE4m3), ScaleType::kE4m3) / format.global;
  } else {
    scale = rounded_to(scale, format.type);
  }
  return at::where(scale == 0, at::full_like(scale, smallest_scale(format)), scale);
}

}  // namespace

ChosenScales qparams_of(const at::Tensor& minimum, const at::Tensor& maximum, double shrink, const RangeRule& rule,
                        const ScaleFormat& stored) {
  const double low = rule.element.minimum, high = rule.element.maximum;
  const ScaleType computed = computed_in(stored);
  const at::Tensor a = rounded_to(minimum * shrink, computed), b = rounded_to(maximum * shrink, computed);
  if (rule.symmetric) {
    const at::Tensor scale = stored_scales(stored, at::maximum(-a, b), rule.element.symmetric_range());
    return {rule.signed_scale ? at::where(maximum > -minimum, -scale, scale) : scale, {}};
  }
  // An empty range gives 0 / 0.
  const at::Tensor range = rounded_to(b - a, computed), scale = rounded_to(divided(range, high - low), computed);
  const at::Tensor zero_point = rounded_to(low - rounded_to(a / scale, computed), computed);
  return {stored_scales(stored, range, high - low), zero_point.clamp(low, high).round().nan_to_num(0)};
}

namespace {

/// `improved` gets what each candidate after the first improved, as a number on the weight's device.
ChosenScales search_rows(const at::Tensor& weight, const ScaleGrid& grid, const RangeRule& rule,
                         const ScaleSearch& search, const ScaleFormat& stored, const at::Tensor& importance,
                         std::vector<at::Tensor>& improved) {
  const at::Tensor wide = weight.to(at::kFloat);
  const std::int64_t rows = wide.size(0), columns = wide.size(1);
  at::Tensor maximum = reduce_blocks(wide, grid, true).clamp_min(0);
  at::Tensor minimum = reduce_blocks(-wide, grid, true).clamp_min(0).neg();
  if (search.expand != 1) {
    maximum = rounded_to(maximum * search.expand, computed_in(stored));
    minimum = rounded_to(minimum * search.expand, computed_in(stored));
  }
  ChosenScales best;
  at::Tensor best_error;
  for (const double factor : search.shrink) {
    const auto [scale, zero] = qparams_of(minimum, maximum, factor, rule, stored);
    const at::Tensor full_scale = spread_blocks(scale, grid, rows, columns);
    const at::Tensor full_zero = zero.defined() ? spread_blocks(zero, grid, rows, columns) : at::Tensor();
    const at::Tensor level = nearest_level(wide, full_scale, full_zero, rule.element);
    at::Tensor error = (level_value(level, full_scale, full_zero) - wide).abs().pow(search.exponent);
    if (importance.defined()) error = error * importance.to(at::kFloat);
    error = reduce_blocks(error, grid, false);
    if (!best_error.defined()) {
      best = {scale, zero};
      best_error = error;
      continue;
    }
    const at::Tensor better = error < best_error;
    if (search.patience > 0) improved.push_back(better.any());
    best_error = at::where(better, error, best_error);
    best.scale = at::where(better, scale, best.scale);
    if (zero.defined()) best.zero_point = at::where(better, zero, best.zero_point);
  }
  return best;
}

/// Rows whose candidates are in memory at once, with several tensors in fp32.
std::int64_t rows_at_once(std::int64_t columns, const ScaleGrid& grid) {
  const std::int64_t blocks = kPlainElements / std::max<std::int64_t>(1, columns * grid.block_rows);
  return grid.block_rows * std::max<std::int64_t>(1, blocks);
}

/// `improved`: of each candidate after the first, again and again.
void mark(const std::vector<at::Tensor>& improved, Improving& improving) {
  if (improved.empty()) return;
  const auto others = static_cast<std::int64_t>(improving.size()) - 1;
  const at::Tensor any = at::stack(improved).view({-1, others}).any(0).cpu();
  for (std::int64_t c = 0; c < others; ++c) improving[static_cast<std::size_t>(c + 1)] |= any.const_data_ptr<bool>()[c];
}

}  // namespace

ChosenScales plain_search_scales(const at::Tensor& weight, const ScaleGrid& grid, const RangeRule& rule,
                                 const ScaleSearch& search, const ScaleFormat& stored, const at::Tensor& importance,
                                 const std::vector<OtherRows>& others) {
  const auto attempt = [&](const at::Tensor& input, const ScaleSearch& candidates, Improving& improving) {
    std::vector<at::Tensor> scales, zero_points, improved;
    for (const at::Tensor& rows : input.split(rows_at_once(input.size(1), grid))) {
      const ChosenScales chosen = search_rows(rows, grid, rule, candidates, stored, importance, improved);
      scales.push_back(chosen.scale);
      if (chosen.zero_point.defined()) zero_points.push_back(chosen.zero_point);
    }
    if (!improving.empty()) mark(improved, improving);
    return ChosenScales{at::cat(scales), zero_points.empty() ? at::Tensor() : at::cat(zero_points)};
  };
  return search_with_patience(weight, search, others, attempt);
}

at::Tensor plain_round_to_nearest(const at::Tensor& weight, const ScaleGrid& grid, const ElementType& element,
                                  const ChosenScales& scales) {
  const std::int64_t rows = weight.size(0), columns = weight.size(1), step = rows_at_once(columns, grid);
  at::Tensor codes = at::empty({rows, columns}, weight.options().dtype(at::kChar));
  for (std::int64_t first = 0; first < rows; first += step) {
    const std::int64_t count = std::min(step, rows - first), first_block = first / grid.block_rows;
    const auto spread = [&](const at::Tensor& per_block) {
      return per_block.defined() ? spread_blocks(per_block.slice(0, first_block, first_block + step / grid.block_rows),
                                                 grid, count, columns)
                                 : at::Tensor();
    };
    const at::Tensor level = nearest_level(weight.narrow(0, first, count).to(at::kFloat), spread(scales.scale),
                                           spread(scales.zero_point), element);
    codes.narrow(0, first, count).copy_(level_codes(level, element));
  }
  return codes;
}

std::uint64_t round_workspace(std::int64_t rows, std::int64_t columns, const ScaleGrid& grid, at::Device device) {
  return device.is_cpu() ? 0 : plain_search_workspace(rows, columns, grid);
}

std::uint64_t plain_search_workspace(std::int64_t rows, std::int64_t columns, const ScaleGrid& grid) {
  constexpr std::uint64_t kTensors = 8;  // weight, levels, scales, zero points, errors, and temporaries of an operation
  const auto elements = static_cast<std::uint64_t>(std::min(rows, rows_at_once(columns, grid)) * columns);
  return kTensors * sizeof(float) * elements;
}

}  // namespace layerpress::kernels
