#pragma once

#include <ATen/core/Tensor.h>

namespace layerpress::kernels {

namespace cpu {
struct Codebook;
}

/// The set of codes: integers [minimum, maximum], or the fp8 e4m3fn values.
struct Codebook {
  bool fp8 = false;
  int minimum = -8;
  int maximum = 7;
};

/// round(clamp(x / scale + zero_point)) as a float level (an integer, or an fp8 value), elementwise with broadcasting.
/// `zero_point` may be undefined. Any device; half to even.
at::Tensor nearest_level(const at::Tensor& x, const at::Tensor& scale, const at::Tensor& zero_point,
                         const Codebook& codebook);

/// (level - zero_point) * scale.
at::Tensor level_value(const at::Tensor& level, const at::Tensor& scale, const at::Tensor& zero_point);

/// Levels as int8: integers unchanged, fp8 values as their bytes.
at::Tensor level_codes(const at::Tensor& level, const Codebook& codebook);

/// The code book in the form that the vector kernels use.
cpu::Codebook cpu_codebook(const Codebook& codebook);

}  // namespace layerpress::kernels
