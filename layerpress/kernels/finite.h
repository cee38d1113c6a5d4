#pragma once

#include <ATen/core/Tensor.h>

namespace layerpress::kernels {

/// Whether no element is NaN or infinite. Any float dtype and device; bf16, fp16 and fp32 on the CPU are read once, on all
/// threads, and nothing is allocated.
bool all_finite(const at::Tensor& tensor);

}  // namespace layerpress::kernels
