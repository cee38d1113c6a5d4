#pragma once

#include "layerpress/kernels/numbers/number_formats.h"

// The values of codes, in code that every instruction set and every device compiles. level() is the code of a ratio to
// the scale as a number, value() its value in units of the scale; encode() and decode() convert it to its bits and
// back.
//
// `Operations` is a type of the place that compiles them (so that functions of different instruction sets have
// different names), with bits_of, float_of, round_even and clamp.
#ifdef __CUDACC__
#define LAYERPRESS_LEVELS __device__ __forceinline__
#else
#define LAYERPRESS_LEVELS inline
#endif

namespace layerpress::kernels {

/// Integers with a zero point.
template <typename Operations>
struct IntegerLevels {
  float minimum, maximum;

  LAYERPRESS_LEVELS float level(float ratio, float zero_point) const {
    return Operations::round_even(Operations::clamp(ratio + zero_point, minimum, maximum));
  }
  LAYERPRESS_LEVELS float value(float level, float zero_point) const { return level - zero_point; }
  LAYERPRESS_LEVELS std::int8_t encode(float level) const {
    return static_cast<std::int8_t>(static_cast<std::int32_t>(level));
  }
  LAYERPRESS_LEVELS float decode(std::int8_t code) const { return static_cast<float>(code); }
};

/// Floats of a sign, some bits of exponent and some of mantissa, always symmetric. Ratios beyond the limits become
/// these; a negative one that is rounded to zero keeps its sign.
template <typename Operations, int kExponentBits, int kMantissaBits>
struct FloatLevels {
  float minimum, maximum;

  LAYERPRESS_LEVELS float level(float ratio, float) const {
    const float x = Operations::clamp(ratio, minimum, maximum);
    const float power = Operations::float_of(Operations::bits_of(x) & 0x7F800000u);
    const float step = (power < kSmallestNormal ? kSmallestNormal : power) * kStepOfPower;
    const float inverse = Operations::float_of((254u << 23) - Operations::bits_of(step));  // exact: a power of two
    const std::uint32_t magnitude = Operations::bits_of(Operations::round_even(x * inverse) * step) & 0x7FFFFFFFu;
    return Operations::float_of(magnitude | (x < 0 ? 0x80000000u : 0u));
  }
  LAYERPRESS_LEVELS float value(float level, float) const { return level; }
  /// The bits of a value that is one.
  LAYERPRESS_LEVELS std::int8_t encode(float level) const {
    const std::uint32_t bits = Operations::bits_of(level), magnitude = bits & 0x7FFFFFFFu;
    const std::uint32_t sign = (bits >> 31) << (kExponentBits + kMantissaBits);
    const float absolute = Operations::float_of(magnitude);
    const std::uint32_t normal = (magnitude >> (23 - kMantissaBits)) - kRebias;
    const auto subnormal = static_cast<std::uint32_t>(absolute * (1.0f / kSmallest));
    return static_cast<std::int8_t>(sign | (absolute < kSmallestNormal ? subnormal : normal));
  }
  /// The value of bits that are not NaN.
  LAYERPRESS_LEVELS float decode(std::int8_t code) const {
    const auto bits = static_cast<std::uint32_t>(static_cast<std::int32_t>(code));
    const std::uint32_t magnitude = bits & ((1u << (kExponentBits + kMantissaBits)) - 1u);
    const float normal = Operations::float_of((magnitude + kRebias) << (23 - kMantissaBits));
    const float subnormal = static_cast<float>(static_cast<std::int32_t>(magnitude)) * kSmallest;
    const std::uint32_t sign = (bits >> (kExponentBits + kMantissaBits)) << 31;
    return Operations::float_of(Operations::bits_of(magnitude < (1u << kMantissaBits) ? subnormal : normal) | sign);
  }

 private:
  static constexpr int kBias = (1 << (kExponentBits - 1)) - 1;
  static constexpr std::uint32_t kRebias = static_cast<std::uint32_t>(127 - kBias) << kMantissaBits;
  static constexpr float kStepOfPower = 1.0f / static_cast<float>(1 << kMantissaBits);
  static constexpr float kSmallestNormal = 2.0f / static_cast<float>(1 << kBias);
  static constexpr float kSmallest = kSmallestNormal * kStepOfPower;
};

/// Calls function(levels) with the element's type, so that loops inside are free of branches.
template <typename Operations, typename Function>
auto with_levels(const ElementType& type, Function&& function) {
  switch (type.element) {
    case Element::kE4m3:
      return function(FloatLevels<Operations, 4, 3>{type.minimum, type.maximum});
    case Element::kE2m1:
      return function(FloatLevels<Operations, 2, 1>{type.minimum, type.maximum});
    default:
      return function(IntegerLevels<Operations>{type.minimum, type.maximum});
  }
}

}  // namespace layerpress::kernels
