#include "layerpress/kernels/dequantize.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <cmath>
#include <numeric>

#include "layerpress/base/error.h"
#include "layerpress/kernels/cpu/table.h"

namespace layerpress::kernels {

at::Tensor dequantize_int8(const at::Tensor& input, const ScaleGrid& grid, const ChosenScales& chosen,
                           at::ScalarType dtype) {
  const at::Tensor codes = input.contiguous(), scale = chosen.scale.contiguous();
  if (!codes.is_cpu() || codes.scalar_type() != at::kChar || (dtype != at::kBFloat16 && dtype != at::kFloat))
    throw InternalError("[kernels.dequantize] wants int8 codes on the CPU and bf16 or fp32 results");
  const at::Tensor zeros = chosen.zero_point.defined() ? chosen.zero_point.contiguous() : at::Tensor();
  const std::int64_t rows = codes.size(0), columns = codes.size(1), blocks = scale.size(1);
  at::Tensor values = at::empty({rows, columns}, at::TensorOptions().dtype(dtype));
  at::parallel_for(0, rows, std::max<std::int64_t>(1, 65536 / columns), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row)
      for (std::int64_t b = 0; b < blocks; ++b) {
        const std::int64_t column = b * grid.block_columns, parameter = row / grid.block_rows * blocks + b;
        const std::int64_t count = std::min(grid.block_columns, columns - column), at = row * columns + column;
        const float zero = zeros.defined() ? zeros.const_data_ptr<float>()[parameter] : 0.0f;
        const float factor = scale.const_data_ptr<float>()[parameter];
        const std::int8_t* source = codes.const_data_ptr<std::int8_t>() + at;
        if (dtype == at::kFloat)
          cpu::table().dequantize_f32(source, count, factor, zero, values.data_ptr<float>() + at);
        else
          cpu::table().dequantize_bf16(source, count, factor, zero, static_cast<cpu::Bits16*>(values.data_ptr()) + at);
      }
  });
  return values;
}

double relative_error(const at::Tensor& weight, const at::Tensor& approximation) {
  const bool fused = weight.is_cpu() && weight.scalar_type() == at::kBFloat16 &&
                     approximation.scalar_type() == at::kBFloat16 && weight.is_contiguous() &&
                     approximation.is_contiguous();
  if (!fused) {
    const at::Tensor wide = weight.to(at::kFloat);
    const double norm = wide.norm().item<double>();
    return norm == 0 ? 0 : (wide - approximation.to(at::kFloat)).norm().item<double>() / norm;
  }
  // Fixed chunks, summed in order: the result does not depend on the thread count.
  constexpr std::int64_t kChunk = 1 << 16;
  const std::int64_t chunks = (weight.numel() + kChunk - 1) / kChunk;
  std::vector<double> differences(static_cast<std::size_t>(chunks)), squares(static_cast<std::size_t>(chunks));
  const auto* a = static_cast<const cpu::Bits16*>(weight.const_data_ptr());
  const auto* b = static_cast<const cpu::Bits16*>(approximation.const_data_ptr());
  at::parallel_for(0, chunks, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t c = begin; c < end; ++c)
      cpu::table().squared_difference_bf16(a + c * kChunk, b + c * kChunk, std::min(kChunk, weight.numel() - c * kChunk),
                                           &differences[c], &squares[c]);
  });
  const double norm = std::accumulate(squares.begin(), squares.end(), 0.0);
  return norm == 0 ? 0 : std::sqrt(std::accumulate(differences.begin(), differences.end(), 0.0) / norm);
}

}  // namespace layerpress::kernels
