#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace layerpress::compression {

/// What another weight costs at the output of a linear: the sum over rows of (w - result) H (w - result)ᵀ, where H is
/// the whole Gram matrix of its inputs, fp32. `result` in any float dtype; undefined: zeros, which gives the power of
/// the output. Some rows at a time.
double output_loss(const at::Tensor& weight, const at::Tensor& result, const at::Tensor& gram);

/// Bytes that it takes for weights with this many columns.
std::uint64_t output_loss_workspace(std::int64_t columns);

double output_loss_flops(std::int64_t rows, std::int64_t columns);

}  // namespace layerpress::compression
