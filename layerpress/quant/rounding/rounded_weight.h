#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "layerpress/quant/scheme.h"

namespace layerpress::quant {

/// A weight [rows, columns] whose columns are multiplied by `scale` (fp32 [columns]), rounded to nearest with min-max scales and divided
/// by `scale` again, in its own dtype and on its device. `largest`: the greatest magnitude in the scaled weight and in all that engines
/// fuse with it, for schemes with a global scale.
at::Tensor rounded_weight(const at::Tensor& weight, const at::Tensor& scale, const QuantizationScheme& scheme,
                          double largest);

/// Bytes that rounded_weight allocates at most besides its result.
std::uint64_t rounded_weight_workspace(const QuantizationScheme& scheme, std::int64_t rows, std::int64_t columns,
                                       at::ScalarType dtype, const at::Device& device);

}  // namespace layerpress::quant
