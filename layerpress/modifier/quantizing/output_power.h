#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace layerpress::modifier {

/// The mean square of a linear's outputs, over outputs and tokens, before it is compressed: wᵀ G w / tokens for each row w. From
/// at most 256 of the rows, evenly spaced, so that it takes next to no time; the others count by their own weights. `gram` is that of
/// the inputs, its upper triangle.
double mean_output_power(const at::Tensor& weight, const at::Tensor& gram, std::int64_t tokens);

/// Bytes that it allocates at most.
std::uint64_t output_power_workspace(std::int64_t columns);

}  // namespace layerpress::modifier
