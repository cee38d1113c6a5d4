#pragma once

#include <ATen/core/Tensor.h>

#include "layerpress/kernels/scales/scale_search.h"

namespace layerpress::kernels {

/// (code - zero_point) * scale in fp32, rounded to `dtype` (bf16, fp16, fp32): [rows, columns] on the CPU. `codes`: int8
/// [rows, columns] as round_to_nearest gives them. Multi-threaded.
at::Tensor dequantize(const at::Tensor& codes, const ScaleGrid& grid, const ElementType& element,
                      const ChosenScales& scales, at::ScalarType dtype);

/// The relative_error between a weight and its codes dequantized to the weight's dtype. Works row by row in cache;
/// allocates nothing of the weight's size. CPU.
double quantization_error(const at::Tensor& weight, const at::Tensor& codes, const ScaleGrid& grid,
                          const ElementType& element, const ChosenScales& scales);

}  // namespace layerpress::kernels
