#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace layerpress::kernels {

/// Rows [first, first + rows) of a contiguous CPU weight [rows, columns] as fp32: a view if the weight is fp32,
/// otherwise in `buffer`. For kernels that convert a weight part by part, in cache.
const float* wide_rows(const at::Tensor& weight, std::int64_t first, std::int64_t rows, std::vector<float>& buffer);

}  // namespace layerpress::kernels
