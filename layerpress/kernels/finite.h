#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace layerpress::kernels {

/// Whether no element is NaN or infinite. Any float dtype and device; fp8 is widened first.
bool all_finite(const at::Tensor& tensor);

/// The same for several tensors, with one result each; synchronizes with a device once for all its tensors.
std::vector<bool> each_finite(const std::vector<at::Tensor>& tensors);

/// The greatest magnitude, on the tensor's device, [] in its dtype: NaN if an element is NaN, 0 for an empty tensor. Reads bf16, fp16 or
/// fp32 once and waits for nothing, so that a device's answers can be read together: all elements are finite if this is.
at::Tensor magnitude_on_device(const at::Tensor& tensor);

/// The greatest magnitude in a weight of bf16, fp16 or fp32 without NaN, on any device; 0 for an empty one. Multi-threaded.
double largest_magnitude(const at::Tensor& weight);

}  // namespace layerpress::kernels
