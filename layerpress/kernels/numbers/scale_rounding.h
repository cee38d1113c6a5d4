#pragma once

#include <cstring>

#include "layerpress/kernels/numbers/number_formats.h"

// Scales as they are stored; for the host and for devices.
#ifdef __CUDACC__
#define LAYERPRESS_SCALES __host__ __device__ __forceinline__
#else
#define LAYERPRESS_SCALES inline
#endif

namespace layerpress::kernels {

LAYERPRESS_SCALES std::uint32_t scale_bits(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

LAYERPRESS_SCALES float scale_of_bits(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

/// The nearest float that has so many bits behind the leading one, and none below 2^(lowest - behind); half to even.
/// Infinite values and NaN stay.
LAYERPRESS_SCALES float rounded_to_bits(float x, int behind, int lowest) {
  const std::uint32_t exponent = (scale_bits(x) >> 23) & 0xFFu;
  if (exponent == 0xFFu) return x;
  const auto least = static_cast<std::uint32_t>(127 + lowest);
  const float step = scale_of_bits((exponent < least ? least : exponent) << 23) / static_cast<float>(1 << behind);
  constexpr float kShift = 12582912.0f;  // 1.5 * 2^23: adding it leaves no fraction bits
  return ((x / step + kShift) - kShift) * step;
}

/// Rounded to a dtype; scales stored as e4m3 are at least 0.
LAYERPRESS_SCALES float rounded_to(ScaleType type, float value) {
  if (type == ScaleType::kFloat) return value;
  if (type == ScaleType::kBf16) {
    const std::uint32_t bits = scale_bits(value);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return value;
    return scale_of_bits((bits + 0x7FFFu + ((bits >> 16) & 1u)) & 0xFFFF0000u);
  }
  if (type == ScaleType::kE4m3) return rounded_to_bits(value < kLargestE4m3 ? value : kLargestE4m3, 3, -6);
  const float rounded = rounded_to_bits(value, 10, -14);
  constexpr std::uint32_t kInfinity = 0x7F800000u;
  if (rounded > 65504.0f) return scale_of_bits(kInfinity);
  return rounded < -65504.0f ? -scale_of_bits(kInfinity) : rounded;
}

/// The scale of a block of zeros: what compressed-tensors takes, its dtype's epsilon.
LAYERPRESS_SCALES float smallest_scale(const ScaleFormat& format) {
  switch (format.type) {
    case ScaleType::kBf16:
      return 0.0078125f;
    case ScaleType::kHalf:
      return 9.765625e-4f;
    case ScaleType::kE4m3:
      return 0.125f / format.global;
    case ScaleType::kE8m0:
      return scale_of_bits(0x00400000u);  // 2^-127
    default:
      return 1.1920929e-7f;
  }
}

/// 2^n with n so that a range's largest value is below that of the codes, or at most an eighth above it.
LAYERPRESS_SCALES float power_scale(float range, float levels) {
  // Adds a quarter of the leading bit and cuts off the bits below it. The sign of a range of -0 is dropped first.
  const auto exponent = static_cast<std::int32_t>(((scale_bits(range) & 0x7FFFFFFFu) + 0x200000u) >> 23);
  const std::int32_t byte = exponent + 127 - static_cast<std::int32_t>(scale_bits(levels) >> 23);
  if (byte <= 0) return scale_of_bits(0x00400000u);
  return scale_of_bits(static_cast<std::uint32_t>(byte < 254 ? byte : 254) << 23);
}

/// The scale that spreads a range over so many levels, as it is when it was stored.
LAYERPRESS_SCALES float stored_scale(const ScaleFormat& format, float range, float levels) {
  if (format.type == ScaleType::kE8m0) return power_scale(range, levels);
  float scale = range / levels;
  if (format.type == ScaleType::kE4m3)
    scale = rounded_to(ScaleType::kE4m3, format.global * rounded_to(format.computed, scale)) / format.global;
  else
    scale = rounded_to(format.type, scale);
  return scale == 0 ? smallest_scale(format) : scale;
}

/// The dtype that ranges and scales are computed in.
LAYERPRESS_SCALES ScaleType computed_in(const ScaleFormat& format) {
  if (format.type == ScaleType::kE8m0) return ScaleType::kFloat;
  return format.type == ScaleType::kE4m3 ? format.computed : format.type;
}

/// One end of a range that is widened by a factor, rounded to the dtype that is computed in.
LAYERPRESS_SCALES float widened(const ScaleFormat& format, float end, float factor) {
  return factor == 1 ? end : rounded_to(computed_in(format), end * factor);
}

/// The sign of a range's scale, whatever the range is multiplied with; `signed_scale`: RangeRule's (scale_search.h).
LAYERPRESS_SCALES float sign_of_scale(bool signed_scale, float minimum, float maximum) {
  return signed_scale && maximum > -minimum ? -1.0f : 1.0f;
}

struct Qparams {
  float scale, zero_point;
};

/// The scale and zero point that compressed-tensors gives a range of weights that includes 0, with every operation
/// rounded to the dtype that is computed in. Symmetric: scale = largest magnitude / half the number of steps; else the
/// whole range / steps, and a zero point.
LAYERPRESS_SCALES Qparams range_parameters(const ScaleFormat& format, const ElementType& element, bool symmetric,
                                           float minimum, float maximum) {
  const ScaleType computed = computed_in(format);
  const float least = rounded_to(computed, minimum), most = rounded_to(computed, maximum);
  const float first = element.minimum, last = element.maximum, steps = last - first;
  if (symmetric) return {stored_scale(format, -least > most ? -least : most, steps / 2), 0};
  const float range = rounded_to(computed, most - least), scale = rounded_to(computed, range / steps);
  float zero_point = 0;
  if (scale != 0)
    zero_point = rounded_to(computed, first - rounded_to(computed, least / scale));
  else if (least != 0)
    zero_point = last;  // the result of dividing by a scale of zero
  zero_point = zero_point < first ? first : zero_point > last ? last : zero_point;
  return {stored_scale(format, range, steps), rintf(zero_point)};
}

}  // namespace layerpress::kernels
