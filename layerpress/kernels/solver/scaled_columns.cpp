#include "layerpress/kernels/solver/scaled_columns.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "layerpress/base/error.h"
#include "layerpress/kernels/cpu/table.h"
#include "layerpress/kernels/products/product.h"
#include "layerpress/kernels/scales/run_rounding.h"

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

/// Rounds a row to nearest and back, with a scale for each block of columns; the last block may be short.
void round_row(RunRounding& rounding, const std::vector<float>& row, std::int64_t block, cpu::ValueType type,
               std::byte* results) {
  const std::int64_t columns = static_cast<std::int64_t>(row.size()), whole = columns / block;
  const std::int64_t size = type == cpu::ValueType::kFloat ? sizeof(float) : sizeof(cpu::Bits16);
  rounding.round(row.data(), whole, block, type, results);
  if (columns > whole * block)
    rounding.round(row.data() + whole * block, 1, columns - whole * block, type, results + whole * block * size);
}

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
    RunRounding rounding(numbers.rule, numbers.stored,
                         static_cast<std::size_t>(blocks_of(columns, numbers.grid.block_columns)));
    for (std::int64_t row = first; row < first + rows; ++row) {
      std::byte* rounded = target + row * row_bytes;
      kernels.scale_columns(source + row * row_bytes, type, forth.const_data_ptr<float>(), columns, scaled.data(),
                            cpu::ValueType::kFloat);
      round_row(rounding, scaled, numbers.grid.block_columns, type, rounded);
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
