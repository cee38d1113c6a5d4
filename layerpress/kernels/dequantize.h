#pragma once

#include <ATen/core/Tensor.h>

#include "layerpress/kernels/scale_search.h"

namespace layerpress::kernels {

/// (code - zero_point) * scale in fp32, rounded to `dtype`: codes int8 [rows, columns] on the CPU, scales and zero points
/// fp32 per block of `grid`, `dtype` bf16 or fp32. Fused and multi-threaded.
at::Tensor dequantize_int8(const at::Tensor& codes, const ScaleGrid& grid, const ChosenScales& scales,
                           at::ScalarType dtype);

/// ‖weight - approximation‖ / ‖weight‖, 0 for a zero weight. Any float dtypes and device.
double relative_error(const at::Tensor& weight, const at::Tensor& approximation);

}  // namespace layerpress::kernels
