#include "layerpress/kernels/scaled_columns.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "layerpress/base/error.h"
#include "layerpress/kernels/cpu/table.h"
#include "layerpress/kernels/product.h"

namespace layerpress::kernels {
namespace {

constexpr std::int64_t kScaledByAten = 1 << 20;  // scaled at once by ATen, in fp32
constexpr std::int64_t kElementsOfTask = 16384;  // of a thread

/// Calls function(first row, rows) on all threads.
template <typename Function>
void for_each_rows(const at::Tensor& weight, Function&& function) {
  const std::int64_t grain = std::max<std::int64_t>(1, kElementsOfTask / std::max<std::int64_t>(1, weight.size(1)));
  at::parallel_for(0, weight.size(0), grain,
                   [&](std::int64_t begin, std::int64_t end) { function(begin, end - begin); });
}

void require_factors(const at::Tensor& weight, const at::Tensor& factors) {
  if (weight.dim() != 2 || factors.dim() != 1 || factors.size(0) != weight.size(1) ||
      factors.scalar_type() != at::kFloat)
    throw InternalError("[kernels.scaled_columns] a weight needs an fp32 factor for each of its columns");
}

/// Rounds rows to nearest and back; used by one thread.
class RowRounding {
 public:
  RowRounding(const WeightNumbers& numbers, std::int64_t columns)
      : numbers_(numbers),
        columns_(columns),
        low_(static_cast<std::size_t>(blocks_of(columns, numbers.grid.block_columns))),
        high_(low_),
        scales_(low_),
        zero_points_(low_) {}

  void run(const float* row, cpu::ValueType type, std::byte* results) {
    const std::int64_t block = numbers_.grid.block_columns, whole = columns_ / block;
    round(row, whole, block, type, results);
    const std::int64_t size = type == cpu::ValueType::kFloat ? sizeof(float) : sizeof(cpu::Bits16);
    round(row + whole * block, columns_ > whole * block ? 1 : 0, columns_ - whole * block, type,
          results + whole * block * size);
  }

 private:
  /// Consecutive runs of values, each with a scale of its own.
  void round(const float* x, std::int64_t runs, std::int64_t run, cpu::ValueType type, std::byte* results) {
    if (runs == 0) return;
    cpu::table().run_ranges(x, runs, run, low_.data(), high_.data());
    for (std::size_t r = 0; r < static_cast<std::size_t>(runs); ++r) {
      const Qparams found = qparams_of({low_[r], high_[r]}, 1, numbers_.rule, numbers_.stored);
      scales_[r] = found.scale;
      zero_points_[r] = found.zero_point;
    }
    cpu::table().round_values({.x = x,
                               .runs = runs,
                               .run = run,
                               .scales = scales_.data(),
                               .zero_points = numbers_.rule.symmetric ? nullptr : zero_points_.data(),
                               .element = numbers_.rule.element,
                               .type = type,
                               .y = results});
  }

  const WeightNumbers& numbers_;
  std::int64_t columns_;
  std::vector<float> low_, high_, scales_, zero_points_;
};

}  // namespace

at::Tensor scaled_columns(const at::Tensor& weight, const at::Tensor& factors) {
  require_factors(weight, factors);
  at::Tensor result = at::empty_like(weight, at::MemoryFormat::Contiguous);
  const std::int64_t step = std::max<std::int64_t>(1, kScaledByAten / std::max<std::int64_t>(1, weight.size(1)));
  for (std::int64_t first = 0; first < weight.size(0); first += step) {
    const std::int64_t count = std::min(step, weight.size(0) - first);
    result.narrow(0, first, count).copy_(weight.narrow(0, first, count).to(at::kFloat) * factors);
  }
  return result;
}

bool rounds_scaled_columns(at::Device device, at::ScalarType dtype, const ScaleGrid& grid) {
  return device.is_cpu() && grid.block_rows == 1 && has_value_type(dtype);
}

at::Tensor rounded_scaled_columns(const at::Tensor& input, const at::Tensor& factors, const WeightNumbers& numbers) {
  require_factors(input, factors);
  if (!rounds_scaled_columns(input.device(), input.scalar_type(), numbers.grid))
    throw InternalError("[kernels.scaled_columns] such a weight is not rounded in one pass");
  const at::Tensor weight = input.contiguous(), forth = factors.contiguous(), back = at::reciprocal(forth);
  at::Tensor result = at::empty_like(weight);
  const cpu::Table& kernels = cpu::table();
  const cpu::ValueType type = value_type(weight.scalar_type());
  const std::int64_t columns = weight.size(1), row_bytes = columns * weight.element_size();
  const auto* source = static_cast<const std::byte*>(weight.const_data_ptr());
  auto* target = static_cast<std::byte*>(result.mutable_data_ptr());
  for_each_rows(weight, [&](std::int64_t first, std::int64_t rows) {
    std::vector<float> scaled(static_cast<std::size_t>(columns));
    RowRounding rounding(numbers, columns);
    for (std::int64_t row = first; row < first + rows; ++row) {
      std::byte* rounded = target + row * row_bytes;
      kernels.scale_columns(source + row * row_bytes, type, forth.const_data_ptr<float>(), columns, scaled.data(),
                            cpu::ValueType::kFloat);
      rounding.run(scaled.data(), type, rounded);
      kernels.scale_columns(rounded, type, back.const_data_ptr<float>(), columns, rounded, type);
    }
  });
  return result;
}

std::uint64_t scaled_columns_workspace(std::int64_t columns, at::Device device) {
  const std::int64_t by_aten = 2 * std::max(kScaledByAten, columns);
  const std::int64_t by_threads = device.is_cpu() ? (5 * at::get_num_threads() + 2) * columns : 0;
  return sizeof(float) * static_cast<std::uint64_t>(std::max(by_aten, by_threads));
}

}  // namespace layerpress::kernels
