#pragma once

#include <cstdint>
#include <cstring>

#include "layerpress/kernels/cpu/table.h"
#include "layerpress/kernels/numbers/element_levels.h"

// Scalar building blocks for simple loops, which the compiler vectorizes.
namespace layerpress::kernels::cpu::LAYERPRESS_ISA {

template <typename To, typename From>
inline To bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

inline float widen(Bits16 bits) { return bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }
inline float widen(float value) { return value; }

// Whether a value is finite is asked of its bits, because these files are compiled as if all were.
constexpr std::uint32_t kInfinityBits = 0x7F800000u;  // NaN's magnitudes are larger
inline std::uint32_t magnitude_bits(float value) { return bit_cast<std::uint32_t>(value) & 0x7FFFFFFFu; }
/// The value, or NaN.
inline float or_nan(float value, bool nan) {
  return bit_cast<float>(bit_cast<std::uint32_t>(value) | (nan ? 0x7FC00000u : 0u));
}

/// Rounds to nearest even; NaN stays NaN.
inline Bits16 narrow_bf16(float value) {
  const auto bits = bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = bits + 0x7FFFu + ((bits >> 16) & 1u);
  return static_cast<Bits16>(magnitude_bits(value) > kInfinityBits ? 0x7FC0u : rounded >> 16);
}

/// float16 bits, as a type of their own.
struct Half {
  std::uint16_t bits;
};

/// A multiplication takes the exponent from float16's range to float's, and makes normal numbers of subnormal ones.
inline float widen(Half value) {
  const std::uint32_t magnitude = value.bits & 0x7FFFu, sign = static_cast<std::uint32_t>(value.bits & 0x8000u) << 16;
  const float scaled = bit_cast<float>(magnitude << 13) * bit_cast<float>((127u + 112u) << 23);
  // Infinity and NaN, by the bits: these files are compiled as if there were neither.
  const std::uint32_t wide = magnitude >= 0x7C00u ? (magnitude << 13) | 0x7F800000u : bit_cast<std::uint32_t>(scaled);
  return bit_cast<float>(wide | sign);
}

/// Rounds to nearest even; NaN stays NaN, and values that are too large become infinite.
inline Half narrow_half(float value) {
  const auto bits = bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFu, sign = (bits >> 16) & 0x8000u;
  const std::uint32_t normal = (magnitude + 0xFFFu + ((magnitude >> 13) & 1u) - (112u << 23)) >> 13;
  // Added to 0.5, a float's last bit is the smallest subnormal number.
  const std::uint32_t subnormal = bit_cast<std::uint32_t>(bit_cast<float>(magnitude) + 0.5f) - 0x3F000000u;
  const std::uint32_t finite = magnitude < (113u << 23) ? subnormal : normal;
  const std::uint32_t large = magnitude > 0x7F800000u ? 0x7E00u : 0x7C00u;
  return Half{static_cast<std::uint16_t>(sign | (magnitude >= 0x477FF000u ? large : finite))};
}

template <typename T>
inline T narrow(float value);
template <>
inline Bits16 narrow<Bits16>(float value) {
  return narrow_bf16(value);
}
template <>
inline Half narrow<Half>(float value) {
  return narrow_half(value);
}
template <>
inline float narrow<float>(float value) {
  return value;
}

/// Calls function with a value of the C++ type for a stored type.
template <typename Function>
inline void with_type(ValueType type, Function&& function) {
  if (type == ValueType::kBFloat16)
    function(Bits16{});
  else if (type == ValueType::kHalf)
    function(Half{});
  else
    function(float{});
}

/// Round half to even for |x| < 2^22; beyond, x is returned with an error below 1 (all callers clamp to +-448).
inline float round_even(float x) {
  constexpr float kShift = 12582912.0f;  // 1.5 * 2^23: adding it removes all fraction bits
  return (x + kShift) - kShift;
}

inline float clamp(float x, float low, float high) {
  x = x < low ? low : x;
  return x > high ? high : x;
}

/// e^x, relative error below 2e-7 in [-87, 88]; clamped outside, so that NaN gives some number.
inline float exponential(float x) {
  x = clamp(x, -87.0f, 88.0f);
  const float n = round_even(x * 1.44269504088896341f);
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const auto power = static_cast<std::int32_t>(n) + 127;
  return p * bit_cast<float>(power << 23);
}

/// tanh(x), relative error below 4e-7.
inline float hyperbolic_tangent(float x) {
  const float square = x * x;
  float p = -5.70498872745e-3f;
  p = p * square + 2.06390887954e-2f;
  p = p * square - 5.37397155531e-2f;
  p = p * square + 1.33314422036e-1f;
  p = p * square - 3.33332819422e-1f;
  const float small = p * square * x + x, large = 1.0f - 2.0f / (exponential(2.0f * x) + 1.0f);
  return square < 0.390625f ? small : large;
}

/// silu(a) b, rounded to the dtype after either.
template <typename T>
inline T silu_multiply(T a, T b) {
  const float x = widen(a);
  return narrow<T>(widen(narrow<T>(x / (1.0f + exponential(-x)))) * widen(b));
}

/// log2(x) for normal x > 0, absolute error below 2e-6, which suffices to rank candidates. No division.
inline float logarithm2(float x) {
  const auto bits = bit_cast<std::uint32_t>(x);
  const auto exponent = static_cast<float>(static_cast<std::int32_t>(bits >> 23) - 127);
  const float t = bit_cast<float>((bits & 0x007FFFFFu) | 0x3F800000u) - 1.0f;  // 0 <= t < 1
  float p = -2.56910903e-2f;
  p = p * t + 1.21002256e-1f;
  p = p * t - 2.76540781e-1f;
  p = p * t + 4.56521695e-1f;
  p = p * t - 7.17791089e-1f;
  p = p * t + 1.44249532f;
  return p * t + (exponent + 1.84560233e-6f);
}

/// 2^x, relative error below 3e-6; clamped outside [-126, 126].
inline float exponential2(float x) {
  constexpr float kShift = 12582912.0f;  // as in round_even; the sum's low bits are the integer
  x = clamp(x, -126.0f, 126.0f);
  const float shifted = x + kShift;
  const float r = x - (shifted - kShift);
  float p = 9.5701e-3f;
  p = p * r + 5.591786e-2f;
  p = p * r + 2.4024745e-1f;
  p = p * r + 6.9312181e-1f;
  p = p * r + 9.9999926e-1f;
  return bit_cast<float>(bit_cast<std::uint32_t>(p) + (bit_cast<std::uint32_t>(shifted) << 23));
}

/// For element_levels.h.
struct Operations {
  static std::uint32_t bits_of(float value) { return bit_cast<std::uint32_t>(value); }
  static float float_of(std::uint32_t bits) { return bit_cast<float>(bits); }
  static float round_even(float x) { return LAYERPRESS_ISA::round_even(x); }
  static float clamp(float x, float low, float high) { return LAYERPRESS_ISA::clamp(x, low, high); }
};

}  // namespace layerpress::kernels::cpu::LAYERPRESS_ISA
