#include "layerpress/kernels/products/relative_error.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>

#include "layerpress/kernels/products/product.h"
#include "layerpress/kernels/products/tensor_bits.h"

namespace layerpress::kernels {
namespace {

/// Elements that are in memory in fp64 at once: on a device enough to be worth a launch.
std::int64_t elements_at_once(at::Device device) { return device.is_cpu() ? 1 << 18 : 1 << 20; }

/// The same in whole rows.
std::int64_t rows_at_once(const at::Tensor& x) {
  const std::int64_t elements = std::max<std::int64_t>(1, x.numel());
  return std::max<std::int64_t>(1, elements_at_once(x.device()) * x.size(0) / elements);
}

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
  if (dtype == at::kHalf) return square_sums(static_cast<const at::Half*>(a), static_cast<const at::Half*>(b), count);
  SquareSums sums;
  with_elementwise(dtype, [&]<typename T>(const cpu::Elementwise<T>& kernels) {
    kernels.squared_difference(static_cast<const T*>(a), static_cast<const T*>(b), count, &sums.difference,
                               &sums.square);
  });
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
  const std::int64_t rows = weight.size(0), step = rows_at_once(weight);
  at::Tensor differences = at::zeros({}, weight.options().dtype(at::kDouble)), squares = at::zeros_like(differences);
  for (std::int64_t first = 0; first < rows; first += step) {
    const std::int64_t count = std::min(step, rows - first);
    const at::Tensor wide = weight.narrow(0, first, count).to(at::kDouble);
    differences.add_((wide - approximation.narrow(0, first, count)).square().sum());
    squares.add_(wide.square().sum());
  }
  return at::where(squares.eq(0), at::zeros_like(squares), (differences / squares).sqrt());
}

std::uint64_t relative_error_workspace(std::int64_t elements, at::Device device) {
  constexpr std::uint64_t kTensors = 3;  // the weight, the difference and a square
  if (device.is_cpu()) return 0;
  return kTensors * sizeof(double) * static_cast<std::uint64_t>(std::min(elements, elements_at_once(device)));
}

namespace {

bool is_fused(const at::Tensor& a, const at::Tensor& b) {
  return a.is_cpu() && has_value_type(a.scalar_type()) && b.scalar_type() == a.scalar_type() && a.is_contiguous() &&
         b.is_contiguous();
}

/// In chunks of a fixed size, in order: the result does not depend on the thread count.
std::vector<SquareSums> chunk_sums(const at::Tensor& first, const at::Tensor& second) {
  constexpr std::int64_t kChunk = 1 << 16;
  const std::int64_t count = first.numel(), bytes = static_cast<std::int64_t>(first.element_size());
  std::vector<SquareSums> parts(static_cast<std::size_t>((count + kChunk - 1) / kChunk));
  const auto* a = static_cast<const std::uint8_t*>(first.const_data_ptr());
  const auto* b = static_cast<const std::uint8_t*>(second.const_data_ptr());
  at::parallel_for(0, static_cast<std::int64_t>(parts.size()), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t c = begin; c < end; ++c)
      parts[static_cast<std::size_t>(c)] = kernels::square_sums(
          a + c * kChunk * bytes, b + c * kChunk * bytes, first.scalar_type(), std::min(kChunk, count - c * kChunk));
  });
  return parts;
}

}  // namespace

double relative_error(const at::Tensor& weight, const at::Tensor& approximation) {
  if (!is_fused(weight, approximation)) return relative_error_scalar(weight, approximation).item<double>();
  return relative_error(chunk_sums(weight, approximation));
}

double squared_difference(const at::Tensor& a, const at::Tensor& b) {
  if (is_fused(a, b)) {
    double sum = 0;
    for (const SquareSums& part : chunk_sums(a, b)) sum += part.difference;
    return sum;
  }
  at::Tensor sum = at::zeros({}, a.options().dtype(at::kDouble));  // read once, because reading waits for a device
  const std::int64_t rows = a.size(0), step = rows_at_once(a);
  for (std::int64_t first = 0; first < rows; first += step) {
    const std::int64_t count = std::min(step, rows - first);
    const at::Tensor difference = a.narrow(0, first, count).to(at::kFloat) - b.narrow(0, first, count).to(at::kFloat);
    sum.add_(at::sum(at::square(difference), at::kDouble));
  }
  return sum.item<double>();
}

}  // namespace layerpress::kernels
