#pragma once

#include <ATen/core/Tensor.h>

namespace layerpress::kernels {

/// ‖weight - approximation‖ / ‖weight‖, 0 for a zero weight. Any float dtypes and device; fused for bf16 on the CPU.
double relative_error(const at::Tensor& weight, const at::Tensor& approximation);

}  // namespace layerpress::kernels
