#pragma once

#include <ATen/core/Tensor.h>

#include "layerpress/kernels/numbers/number_formats.h"

namespace layerpress::kernels {

/// round(clamp(x / scale + zero_point)) as a float level (an integer, or a value of a float element), elementwise with
/// broadcasting. `zero_point` may be undefined. Any device; half to even.
at::Tensor nearest_level(const at::Tensor& x, const at::Tensor& scale, const at::Tensor& zero_point,
                         const ElementType& element);

/// (level - zero_point) * scale.
at::Tensor level_value(const at::Tensor& level, const at::Tensor& scale, const at::Tensor& zero_point);

/// Levels as int8: integers as they are, values of a float element as their bits.
at::Tensor level_codes(const at::Tensor& level, const ElementType& element);

/// The inverse of level_codes, in fp32.
at::Tensor code_levels(const at::Tensor& codes, const ElementType& element);

}  // namespace layerpress::kernels
