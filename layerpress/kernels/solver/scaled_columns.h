#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "layerpress/kernels/scales/scale_search.h"

namespace layerpress::kernels {

/// A copy of a weight [rows, columns] in its own dtype, whose columns are multiplied by factors, fp32 [columns], in fp32. Any device;
/// multi-threaded on the CPU.
at::Tensor scaled_columns(const at::Tensor& weight, const at::Tensor& factors);

/// The numbers that a weight is rounded to.
struct WeightNumbers {
  ScaleGrid grid;
  RangeRule rule;
  ScaleFormat stored;
};

/// Whether rounded_scaled_columns rounds such a weight: on the CPU, bf16, fp16 or fp32, in blocks of one row.
bool rounds_scaled_columns(at::Device device, at::ScalarType dtype, const ScaleGrid& grid);

/// A weight [rows, columns] whose columns are multiplied by factors, fp32 [columns], rounded to nearest with min-max scales, and
/// multiplied by the reciprocals of the factors: all in one pass over the weight. Each of the three results is computed in fp32 and
/// rounded to the weight's dtype, as by scaled_columns, search_scales with round_to_nearest and dequantize, and scaled_columns.
at::Tensor rounded_scaled_columns(const at::Tensor& weight, const at::Tensor& factors, const WeightNumbers& numbers);

/// Bytes that either function allocates at most besides its result.
std::uint64_t scaled_columns_workspace(std::int64_t columns, at::Device device);

}  // namespace layerpress::kernels
