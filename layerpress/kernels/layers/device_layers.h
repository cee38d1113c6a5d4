#pragma once

#include <optional>

#include "layerpress/kernels/layers/transformer.h"

namespace layerpress::kernels {

// The functions of kernels/layers/transformer.h as kernels of the device that holds x. They return nothing if this build has
// no such kernel for the device or the dtypes.
std::optional<at::Tensor> rms_norm_on_device(const at::Tensor& x, const at::Tensor& weight, double epsilon,
                                             const NormWeight& how);
std::optional<at::Tensor> silu_multiply_on_device(const at::Tensor& a, const at::Tensor& b);
std::optional<at::Tensor> rotary_on_device(const at::Tensor& x, const at::Tensor& cosine, const at::Tensor& sine,
                                           const at::Tensor& positions, const RotaryShape& shape);

}  // namespace layerpress::kernels
