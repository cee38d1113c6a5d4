#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace layerpress::kernels {

/// ‖weight - approximation‖ / ‖weight‖, 0 for a zero weight. Any float dtypes and device, chunk by chunk; fused for equal
/// dtypes on the CPU.
double relative_error(const at::Tensor& weight, const at::Tensor& approximation);

/// The same as an fp64 scalar on the weight's device, which nobody waits for.
at::Tensor relative_error_scalar(const at::Tensor& weight, const at::Tensor& approximation);

/// Sums over some elements.
struct SquareSums {
  double difference = 0;  ///< of (a - b)²
  double square = 0;      ///< of a²
};

/// Of `count` CPU values a and b, both of `dtype` (bf16, fp16, fp32).
SquareSums square_sums(const void* a, const void* b, at::ScalarType dtype, std::int64_t count);

/// The relative error that sums over parts of a weight say.
double relative_error(const std::vector<SquareSums>& parts);

}  // namespace layerpress::kernels
