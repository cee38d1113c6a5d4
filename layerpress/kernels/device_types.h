#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "layerpress/kernels/codebook.h"
#include "layerpress/kernels/cuda/column_block.h"
#include "layerpress/kernels/cuda/number.h"

// What tensors and code books are to the kernels of a device, whose headers know neither.
namespace layerpress::kernels {

/// Nothing for a dtype that the kernels do not support.
inline std::optional<cuda::Number> device_number(at::ScalarType dtype) {
  if (dtype == at::kBFloat16) return cuda::Number::kBf16;
  if (dtype == at::kHalf) return cuda::Number::kHalf;
  if (dtype == at::kFloat) return cuda::Number::kFloat;
  return std::nullopt;
}

cuda::Codebook device_codebook(const Codebook& codebook);

}  // namespace layerpress::kernels
