#include "layerpress/kernels/scale_search.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <limits>

#include "layerpress/kernels/cpu/table.h"

namespace layerpress::kernels {
namespace {

/// Smallest scale of a dtype, used where a block is all zero (compressed-tensors' rule).
double scale_epsilon(at::ScalarType stored) {
  switch (stored) {
    case at::kBFloat16:
      return 0.0078125;
    case at::kHalf:
      return 9.765625e-4;
    default:
      return std::numeric_limits<float>::epsilon();
  }
}

float round_to(float value, at::ScalarType stored) {
  switch (stored) {
    case at::kBFloat16:
      return static_cast<float>(at::BFloat16(value));
    case at::kHalf:
      return static_cast<float>(at::Half(value));
    default:
      return value;
  }
}

struct Qparams {
  float scale = 1;
  float zero_point = 0;
};

/// Scale and zero point of the range [minimum, maximum] (which holds 0), by the rule's formulas.
Qparams qparams_of(float minimum, float maximum, const RangeRule& rule, at::ScalarType stored) {
  const auto low = static_cast<float>(rule.codebook.minimum), high = static_cast<float>(rule.codebook.maximum);
  Qparams result;
  if (rule.codebook.fp8)
    result.scale = std::max(-minimum, maximum) / 448.0f;
  else if (rule.symmetric)
    result.scale = std::max(-minimum, maximum) / ((high - low) / 2);
  else
    result.scale = (maximum - minimum) / (high - low);
  result.scale = round_to(result.scale, stored);
  if (result.scale == 0) result.scale = static_cast<float>(scale_epsilon(stored));
  if (!rule.symmetric) result.zero_point = std::nearbyint(std::clamp(low - minimum / result.scale, low, high));
  return result;
}

cpu::Codebook cpu_codebook(const Codebook& codebook) {
  return {codebook.fp8, codebook.fp8 ? -448.0f : static_cast<float>(codebook.minimum),
          codebook.fp8 ? 448.0f : static_cast<float>(codebook.maximum)};
}

/// The candidate with the smallest error, in order, giving up after `patience` without improvement.
std::size_t best_candidate(const std::vector<float>& errors, int patience) {
  std::size_t best = 0;
  int idle = 0;
  for (std::size_t c = 1; c < errors.size(); ++c) {
    if (errors[c] < errors[best]) {
      best = c;
      idle = 0;
    } else if (patience > 0 && ++idle >= patience) {
      break;
    }
  }
  return best;
}

/// Rows [first, first + rows) of a CPU weight as fp32: a view where they are that already, else in `buffer`.
const float* wide_rows(const at::Tensor& weight, std::int64_t first, std::int64_t rows, std::vector<float>& buffer) {
  const std::int64_t columns = weight.size(1);
  if (weight.scalar_type() == at::kFloat) return weight.const_data_ptr<float>() + first * columns;
  buffer.resize(static_cast<std::size_t>(rows * columns));
  if (weight.scalar_type() == at::kBFloat16) {
    const auto* bits = static_cast<const cpu::Bits16*>(weight.const_data_ptr()) + first * columns;
    cpu::table().widen_bf16(bits, buffer.data(), rows * columns);
  } else {
    at::from_blob(buffer.data(), {rows, columns}, at::kFloat).copy_(weight.slice(0, first, first + rows));
  }
  return buffer.data();
}

/// Searches the blocks of one row of blocks. Rows are widened to fp32 once.
class BlockRowSearch {
 public:
  BlockRowSearch(const at::Tensor& weight, const ScaleGrid& grid, const RangeRule& rule, const ScaleSearch& search,
                 at::ScalarType stored, const float* importance)
      : weight_(weight), grid_(grid), rule_(rule), search_(search), stored_(stored), importance_(importance) {}

  void run(std::int64_t block_row, float* scales, float* zero_points) {
    const std::int64_t columns = weight_.size(1);
    const std::int64_t first = block_row * grid_.block_rows;
    const std::int64_t rows = std::min(grid_.block_rows, weight_.size(0) - first);
    const float* data = wide_rows(weight_, first, rows, buffer_);
    std::int64_t block = 0;
    for (std::int64_t begin = 0; begin < columns; begin += grid_.block_columns, ++block) {
      const std::int64_t count = std::min(grid_.block_columns, columns - begin);
      const Qparams chosen = search_block(data + begin, rows, columns, count, begin);
      scales[block] = chosen.scale;
      if (zero_points != nullptr) zero_points[block] = chosen.zero_point;
    }
  }

 private:
  Qparams search_block(const float* data, std::int64_t rows, std::int64_t stride, std::int64_t count,
                       std::int64_t first_column) {
    float minimum = 0, maximum = 0;
    for (std::int64_t r = 0; r < rows; ++r) cpu::table().minimum_maximum(data + r * stride, count, &minimum, &maximum);
    const std::size_t candidates = search_.shrink.size();
    scales_.resize(candidates), zero_points_.resize(candidates), errors_.assign(candidates, 0.0f);
    for (std::size_t c = 0; c < candidates; ++c) {
      const auto factor = static_cast<float>(search_.shrink[c]);
      const Qparams q = qparams_of(minimum * factor, maximum * factor, rule_, stored_);
      scales_[c] = q.scale, zero_points_[c] = q.zero_point;
    }
    std::size_t best = 0;
    if (candidates > 1) {
      for (std::int64_t r = 0; r < rows; ++r)
        cpu::table().scale_errors({.weights = data + r * stride,
                                   .importance = importance_ == nullptr ? nullptr : importance_ + first_column,
                                   .count = count,
                                   .scales = scales_.data(),
                                   .zero_points = rule_.symmetric ? nullptr : zero_points_.data(),
                                   .candidates = static_cast<std::int64_t>(candidates),
                                   .exponent = static_cast<float>(search_.exponent),
                                   .codebook = cpu_codebook(rule_.codebook),
                                   .errors = errors_.data()});
      best = best_candidate(errors_, search_.patience);
    }
    return {scales_[best], zero_points_[best]};
  }

  const at::Tensor& weight_;
  const ScaleGrid& grid_;
  const RangeRule& rule_;
  const ScaleSearch& search_;
  at::ScalarType stored_;
  const float* importance_;
  std::vector<float> buffer_, scales_, zero_points_, errors_;
};

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

ChosenScales search_scales(const at::Tensor& input, const ScaleGrid& grid, const RangeRule& rule,
                           const ScaleSearch& search, at::ScalarType stored, const at::Tensor& importance) {
  if (!input.is_cpu()) return search_scales_reference(input, grid, rule, search, stored, importance);
  const at::Tensor weight = input.contiguous();
  const std::int64_t row_blocks = blocks(weight.size(0), grid.block_rows);
  const std::int64_t column_blocks = blocks(weight.size(1), grid.block_columns);
  ChosenScales chosen;
  chosen.scale = at::empty({row_blocks, column_blocks}, at::kFloat);
  if (!rule.symmetric) chosen.zero_point = at::empty({row_blocks, column_blocks}, at::kFloat);
  const at::Tensor weights_of_error = importance.defined() ? importance.to(at::kFloat).contiguous() : at::Tensor();
  const std::int64_t grain = std::max<std::int64_t>(1, 16384 / (grid.block_rows * weight.size(1)));
  at::parallel_for(0, row_blocks, grain, [&](std::int64_t begin, std::int64_t end) {
    BlockRowSearch worker(weight, grid, rule, search, stored,
                          importance.defined() ? weights_of_error.const_data_ptr<float>() : nullptr);
    for (std::int64_t b = begin; b < end; ++b)
      worker.run(b, chosen.scale.data_ptr<float>() + b * column_blocks,
                 rule.symmetric ? nullptr : chosen.zero_point.data_ptr<float>() + b * column_blocks);
  });
  return chosen;
}

ChosenScales search_scales_reference(const at::Tensor& weight, const ScaleGrid& grid, const RangeRule& rule,
                                     const ScaleSearch& search, at::ScalarType stored, const at::Tensor& importance) {
  const at::Tensor wide = weight.to(at::kFloat);
  const std::int64_t rows = wide.size(0), columns = wide.size(1);
  const at::Tensor maximum = reduce_blocks(wide, grid, true).clamp_min(0);
  const at::Tensor minimum = reduce_blocks(-wide, grid, true).clamp_min(0).neg();
  const double low = rule.codebook.minimum, high = rule.codebook.maximum;
  ChosenScales best;
  at::Tensor best_error, idle;
  for (const double factor : search.shrink) {
    const at::Tensor a = minimum * factor, b = maximum * factor;
    at::Tensor scale = rule.symmetric || rule.codebook.fp8
                           ? at::maximum(-a, b) / (rule.codebook.fp8 ? 448.0 : (high - low) / 2)
                           : (b - a) / (high - low);
    scale = scale.to(stored).to(at::kFloat);
    scale = at::where(scale == 0, at::full_like(scale, scale_epsilon(stored)), scale);
    const at::Tensor zero = rule.symmetric ? at::Tensor() : (low - a / scale).clamp(low, high).round();
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

at::Tensor round_to_nearest(const at::Tensor& input, const ScaleGrid& grid, const Codebook& codebook,
                            const ChosenScales& scales) {
  const at::Tensor weight = input.contiguous();
  const std::int64_t rows = weight.size(0), columns = weight.size(1);
  if (!weight.is_cpu()) {
    const at::Tensor scale = spread_blocks(scales.scale, grid, rows, columns);
    const at::Tensor zero =
        scales.zero_point.defined() ? spread_blocks(scales.zero_point, grid, rows, columns) : at::Tensor();
    return level_codes(nearest_level(weight.to(at::kFloat), scale, zero, codebook), codebook);
  }
  at::Tensor codes = at::empty({rows, columns}, at::kChar);
  const std::int64_t column_blocks = scales.scale.size(1);
  const cpu::Codebook book = cpu_codebook(codebook);
  at::parallel_for(0, rows, std::max<std::int64_t>(1, 65536 / columns), [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> buffer;
    for (std::int64_t row = begin; row < end; ++row) {
      const float* wide = wide_rows(weight, row, 1, buffer);
      const std::int64_t first = row / grid.block_rows * column_blocks;
      for (std::int64_t b = 0; b < column_blocks; ++b) {
        const std::int64_t column = b * grid.block_columns;
        const float zero = scales.zero_point.defined() ? scales.zero_point.const_data_ptr<float>()[first + b] : 0.0f;
        cpu::table().quantize(wide + column, std::min(grid.block_columns, columns - column),
                              scales.scale.const_data_ptr<float>()[first + b], zero, book,
                              codes.data_ptr<std::int8_t>() + row * columns + column);
      }
    }
  });
  return codes;
}

}  // namespace layerpress::kernels
