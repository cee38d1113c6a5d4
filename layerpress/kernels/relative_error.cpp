#include "layerpress/kernels/relative_error.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>

#include "layerpress/kernels/cpu/table.h"

namespace layerpress::kernels {
namespace {

bool is_fused(at::ScalarType dtype) { return dtype == at::kBFloat16 || dtype == at::kHalf || dtype == at::kFloat; }

SquareSums square_sums(const at::Half* a, const at::Half* b, std::int64_t count) {
  SquareSums sums;
  for (std::int64_t i = 0; i < count; ++i) {
    const double value = a[i], difference = value - static_cast<double>(b[i]);
    sums.difference += difference * difference;
    sums.square += value * value;
  }
  return sums;
}

}  // namespace

SquareSums square_sums(const void* a, const void* b, at::ScalarType dtype, std::int64_t count) {
  SquareSums sums;
  if (dtype == at::kBFloat16)
    cpu::table().squared_difference_bf16(static_cast<const cpu::Bits16*>(a), static_cast<const cpu::Bits16*>(b), count,
                                         &sums.difference, &sums.square);
  else if (dtype == at::kFloat)
    cpu::table().squared_difference_f32(static_cast<const float*>(a), static_cast<const float*>(b), count,
                                        &sums.difference, &sums.square);
  else
    sums = square_sums(static_cast<const at::Half*>(a), static_cast<const at::Half*>(b), count);
  return sums;
}

double relative_error(const std::vector<SquareSums>& parts) {
  SquareSums total;
  for (const SquareSums& part : parts) {
    total.difference += part.difference;
    total.square += part.square;
  }
  return total.square == 0 ? 0 : std::sqrt(total.difference / total.square);
}

at::Tensor relative_error_scalar(const at::Tensor& weight, const at::Tensor& approximation) {
  if (weight.dim() == 0) return relative_error_scalar(weight.view({1}), approximation.view({1}));
  const std::int64_t at_once = weight.is_cpu() ? 1 << 18 : 1 << 24, rows = weight.size(0);
  const std::int64_t step = std::max<std::int64_t>(1, at_once * rows / std::max<std::int64_t>(1, weight.numel()));
  at::Tensor differences = at::zeros({}, weight.options().dtype(at::kDouble)), squares = at::zeros_like(differences);
  for (std::int64_t first = 0; first < rows; first += step) {
    const std::int64_t count = std::min(step, rows - first);
    const at::Tensor wide = weight.narrow(0, first, count).to(at::kDouble);
    differences.add_((wide - approximation.narrow(0, first, count)).square().sum());
    squares.add_(wide.square().sum());
  }
  return at::where(squares.eq(0), at::zeros_like(squares), (differences / squares).sqrt());
}

double relative_error(const at::Tensor& weight, const at::Tensor& approximation) {
  const bool fused = weight.is_cpu() && is_fused(weight.scalar_type()) &&
                     approximation.scalar_type() == weight.scalar_type() && weight.is_contiguous() &&
                     approximation.is_contiguous();
  if (!fused) return relative_error_scalar(weight, approximation).item<double>();
  // Fixed chunks, summed in order: the result does not depend on the thread count.
  constexpr std::int64_t kChunk = 1 << 16;
  const std::int64_t chunks = (weight.numel() + kChunk - 1) / kChunk,
                     bytes = static_cast<std::int64_t>(weight.element_size());
  std::vector<SquareSums> parts(static_cast<std::size_t>(chunks));
  const auto* a = static_cast<const std::uint8_t*>(weight.const_data_ptr());
  const auto* b = static_cast<const std::uint8_t*>(approximation.const_data_ptr());
  at::parallel_for(0, chunks, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t c = begin; c < end; ++c)
      parts[static_cast<std::size_t>(c)] =
          square_sums(a + c * kChunk * bytes, b + c * kChunk * bytes, weight.scalar_type(),
                      std::min(kChunk, weight.numel() - c * kChunk));
  });
  return relative_error(parts);
}

}  // namespace layerpress::kernels
