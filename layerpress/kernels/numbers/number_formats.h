#pragma once

#include <cstdint>

// The numbers that weights are stored as, as data: for functions of tensors, for kernels of every instruction set and
// for devices. Neither ATen nor heavy standard headers are included (cpu/table.h says why). element_levels.h computes
// with elements, scale_rounding.h with scales.
namespace layerpress::kernels {

enum class Element : std::uint8_t {
  kInteger,  ///< with a zero point where weights are asymmetric
  kE4m3,     ///< 8-bit float e4m3fn: 4 bits of exponent, 3 of mantissa, no infinities
  kE2m1      ///< 4-bit float: 2 bits of exponent, 1 of mantissa; neither infinities nor NaN
};

/// The element type of codes: the integers or float values between two limits.
struct ElementType {
  Element element = Element::kInteger;
  float minimum = -8;
  float maximum = 7;

  /// Range of the values, in halves of it, that a symmetric range is spread over.
  constexpr float symmetric_range() const { return (maximum - minimum) / 2; }
  // Written out, because device code is C++17.
  constexpr bool operator==(const ElementType& other) const {
    return element == other.element && minimum == other.minimum && maximum == other.maximum;
  }
};

/// Integers of 1 to 8 bits.
constexpr ElementType integers(int bits) {
  const auto count = static_cast<float>(1 << bits);
  return {Element::kInteger, -count / 2, count / 2 - 1};
}

constexpr float kLargestE4m3 = 448, kLargestE2m1 = 6;
constexpr ElementType kE4m3{Element::kE4m3, -kLargestE4m3, kLargestE4m3};
constexpr ElementType kE2m1{Element::kE2m1, -kLargestE2m1, kLargestE2m1};

/// The stored type of a scale.
enum class ScaleType : std::uint8_t {
  kBf16,
  kHalf,
  kFloat,
  kE4m3,  ///< times a global scale, by which readers divide
  kE8m0   ///< a power of two: a byte that is its exponent with 127 added
};

/// The stored form of a weight's scales.
struct ScaleFormat {
  ScaleType type = ScaleType::kBf16;
  /// For e4m3 scales: the dtype in which they are computed, and the global scale.
  ScaleType computed = ScaleType::kFloat;
  float global = 1;
};

}  // namespace layerpress::kernels
