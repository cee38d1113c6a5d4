#pragma once

#include "layerpress/kernels/cpu/lanes.h"

namespace layerpress::kernels::cpu::LAYERPRESS_ISA {

/// Integers with a zero point. level() is the code; value() is its value in units of the scale.
struct IntegerLevels {
  float minimum, maximum;
  explicit IntegerLevels(const Codebook& codebook) : minimum(codebook.minimum), maximum(codebook.maximum) {}
  float level(float x, float zero_point) const { return round_even(clamp(x + zero_point, minimum, maximum)); }
  float value(float level, float zero_point) const { return level - zero_point; }
  std::int8_t encode(float level) const { return static_cast<std::int8_t>(static_cast<std::int32_t>(level)); }
  float decode(std::int8_t code) const { return static_cast<float>(code); }
};

/// fp8 e4m3fn, always symmetric.
struct Fp8Levels {
  explicit Fp8Levels(const Codebook&) {}
  float level(float x, float) const { return round_fp8(x); }
  float value(float level, float) const { return level; }
  std::int8_t encode(float level) const { return encode_fp8(level); }
  float decode(std::int8_t code) const { return decode_fp8(code); }
};

/// Calls function(levels) with the code book's type, so that the loops inside have no branches.
template <typename Function>
auto with_levels(const Codebook& codebook, Function&& function) {
  return codebook.fp8 ? function(Fp8Levels(codebook)) : function(IntegerLevels(codebook));
}

}  // namespace layerpress::kernels::cpu::LAYERPRESS_ISA
