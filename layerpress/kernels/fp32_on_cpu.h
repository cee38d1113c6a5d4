#pragma once

#include <ATen/core/Tensor.h>

namespace layerpress::kernels {

/// The values on the CPU, fp32 and contiguous.
inline at::Tensor fp32_on_cpu(const at::Tensor& x) { return x.to(at::kCPU, at::kFloat).contiguous(); }

}  // namespace layerpress::kernels
