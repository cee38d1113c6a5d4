#pragma once

#ifdef __CUDACC__
#include <cuda_fp16.h>
#endif

#include "layerpress/kernels/cuda/lanes.h"
#include "layerpress/kernels/cuda/number.h"

namespace layerpress::kernels::cuda {

/// bfloat16, given by its bits.
struct Bf16 {
  std::uint16_t bits;
};

LAYERPRESS_LANES float widen(Bf16 value) { return float_of(static_cast<std::uint32_t>(value.bits) << 16); }
LAYERPRESS_LANES float widen(float value) { return value; }
#ifdef __CUDACC__
LAYERPRESS_LANES float widen(__half value) { return __half2float(value); }
#endif

template <typename T>
LAYERPRESS_LANES T narrow(float value);
template <>
LAYERPRESS_LANES float narrow<float>(float value) {
  return value;
}
/// Rounds to nearest even; NaN stays NaN.
template <>
LAYERPRESS_LANES Bf16 narrow<Bf16>(float value) {
  const std::uint32_t bits = bits_of(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return {0x7FC0u};
  return {static_cast<std::uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16)};
}

#ifdef __CUDACC__
template <>
LAYERPRESS_LANES __half narrow<__half>(float value) {
  return __float2half_rn(value);
}
#endif

/// Calls function(T()) with the type of `number`; `Half` is the type of 16-bit floats where this is compiled.
template <typename Half, typename Function>
void with_type(Number number, Function&& function) {
  if (number == Number::kBf16)
    function(Bf16());
  else if (number == Number::kHalf)
    function(Half());
  else
    function(float());
}

/// For element_levels.h.
struct LaneOperations {
  static LAYERPRESS_LANES std::uint32_t bits_of(float value) { return cuda::bits_of(value); }
  static LAYERPRESS_LANES float float_of(std::uint32_t bits) { return cuda::float_of(bits); }
  static LAYERPRESS_LANES float round_even(float x) { return rintf(x); }
  static LAYERPRESS_LANES float clamp(float x, float low, float high) { return fminf(fmaxf(x, low), high); }
};

}  // namespace layerpress::kernels::cuda
