#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace layerpress::kernels {

/// Rows [first, first + rows) of a contiguous weight [rows, columns] on the CPU as fp32: a view where they are that
/// already, else in `buffer`. For kernels that widen a weight bit by bit, in cache.
const float* wide_rows(const at::Tensor& weight, std::int64_t first, std::int64_t rows, std::vector<float>& buffer);

}  // namespace layerpress::kernels
