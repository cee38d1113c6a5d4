#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "layerpress/kernels/cuda/number.h"

// Descriptions of tensors for the kernels of a device, whose headers do not include ATen.
namespace layerpress::kernels {

/// Nothing for a dtype that the kernels do not support.
inline std::optional<cuda::Number> device_number(at::ScalarType dtype) {
  if (dtype == at::kBFloat16) return cuda::Number::kBf16;
  if (dtype == at::kHalf) return cuda::Number::kHalf;
  if (dtype == at::kFloat) return cuda::Number::kFloat;
  return std::nullopt;
}

}  // namespace layerpress::kernels
