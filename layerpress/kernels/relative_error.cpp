#include "layerpress/kernels/relative_error.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <cmath>
#include <numeric>

#include "layerpress/kernels/cpu/table.h"

namespace layerpress::kernels {

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
      cpu::table().squared_difference_bf16(a + c * kChunk, b + c * kChunk,
                                           std::min(kChunk, weight.numel() - c * kChunk), &differences[c], &squares[c]);
  });
  const double norm = std::accumulate(squares.begin(), squares.end(), 0.0);
  return norm == 0 ? 0 : std::sqrt(std::accumulate(differences.begin(), differences.end(), 0.0) / norm);
}

}  // namespace layerpress::kernels
