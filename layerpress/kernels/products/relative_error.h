#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace layerpress::kernels {

/// ‖weight - approximation‖ / ‖weight‖; 0 for a zero weight. Any float dtypes and device; chunk by chunk; fused for
/// equal dtypes on the CPU.
double relative_error(const at::Tensor& weight, const at::Tensor& approximation);

/// The same as an fp64 scalar on the weight's device, without synchronization.
at::Tensor relative_error_scalar(const at::Tensor& weight, const at::Tensor& approximation);

/// Bytes that relative_error_scalar takes on a device for a weight of so many elements; 0 on the CPU, where it is fused.
std::uint64_t relative_error_workspace(std::int64_t elements, at::Device device);

/// Sums over a range of elements.
struct SquareSums {
  double difference = 0;  ///< sum of (a - b)²
  double square = 0;      ///< sum of a²
};

/// The sums for `count` CPU values a and b, both of `dtype` (bf16, fp16, fp32).
SquareSums square_sums(const void* a, const void* b, at::ScalarType dtype, std::int64_t count);

/// The sum of (a - b)² over two tensors of one shape and dtype. Any float dtypes and device; chunk by chunk; one pass on the CPU.
double squared_difference(const at::Tensor& a, const at::Tensor& b);

/// The relative error from the sums over parts of a weight.
double relative_error(const std::vector<SquareSums>& parts);

}  // namespace layerpress::kernels
