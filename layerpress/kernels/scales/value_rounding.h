#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "layerpress/kernels/scales/scale_search.h"

namespace layerpress::kernels {

/// How values are rounded to few bits and back.
struct ValueRounding {
  RangeRule rule;
  std::int64_t run = 0;  ///< consecutive features that share a scale, found from their range; 0: scales are given
  ScaleFormat scales{ScaleType::kFloat};  ///< of runs
  std::vector<float> given{};             ///< one scale for all features, or one for each of equal runs of them
  std::vector<float> zero_points{};       ///< the same; empty: all 0
};

/// x [rows, features] as quantized and dequantized activations, in x's dtype; computed in fp32. A scale is
/// compressed-tensors' for the range of the run (RangeRule); zeros stay zeros, NaN stays NaN. Any device; in one pass
/// for bf16 and fp32 on a CPU.
at::Tensor rounded_values(const at::Tensor& x, const ValueRounding& rounding);

/// The same with ATen, for every dtype and device; also the plain implementation for tests.
at::Tensor plain_rounded_values(const at::Tensor& x, const ValueRounding& rounding);

/// Bytes that plain_rounded_values, which needs more, allocates at most besides its result.
std::uint64_t rounding_workspace_bytes(std::int64_t rows, std::int64_t features);

}  // namespace layerpress::kernels
