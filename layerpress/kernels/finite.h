#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace layerpress::kernels {

/// Whether no element is NaN or infinite. Any float dtype and device; bf16, fp16 and fp32 on the CPU are read once, on all
/// threads, and nothing is allocated.
bool all_finite(const at::Tensor& tensor);

/// The same for some tensors, each for itself; a device is asked once for all that lie there.
std::vector<bool> each_finite(const std::vector<at::Tensor>& tensors);

}  // namespace layerpress::kernels
