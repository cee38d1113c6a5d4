#pragma once

#ifdef __CUDACC__
#include <cuda_fp16.h>
#endif

#include <cmath>

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

/// The nearest float that has so many bits behind the leading one, and none below 2^(lowest - behind).
LAYERPRESS_LANES float rounded_to_bits(float x, std::int32_t behind, std::int32_t lowest) {
  if (x == 0) return x;
  int exponent;
  frexpf(x, &exponent);  // x = m 2^exponent, 0.5 <= |m| < 1
  const std::int32_t leading = exponent - 1;
  const float step = ldexpf(1.0f, (leading < lowest ? lowest : leading) - behind);
  return rintf(x / step) * step;
}

/// A finite value as it is when it was stored as `number`.
LAYERPRESS_LANES float rounded_to(Number number, float value) {
  if (number == Number::kBf16) return widen(narrow<Bf16>(value));
  if (number == Number::kFloat) return value;
  const float rounded = rounded_to_bits(value, 10, -14);
  constexpr std::uint32_t kInfinity = 0x7F800000u;
  return fabsf(rounded) > 65504.0f ? float_of((bits_of(value) & 0x80000000u) | kInfinity) : rounded;
}

}  // namespace layerpress::kernels::cuda
