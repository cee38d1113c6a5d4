#pragma once

#include <cmath>

#include "layerpress/kernels/cuda/column_block.h"
#include "layerpress/kernels/cuda/conversions.h"

// The values of codes. level() is the code, as a number, of a ratio to the scale; value() is the code's value in units
// of the scale.
namespace layerpress::kernels::cuda {

/// Integers with a zero point.
struct IntegerLevels {
  float minimum, maximum;
  LAYERPRESS_LANES float level(float x, float zero_point) const {
    return rintf(fminf(fmaxf(x + zero_point, minimum), maximum));
  }
  LAYERPRESS_LANES float value(float level, float zero_point) const { return level - zero_point; }
  LAYERPRESS_LANES std::int8_t encode(float level) const { return static_cast<std::int8_t>(level); }
};

/// fp8 e4m3fn, always symmetric.
struct Fp8Levels {
  LAYERPRESS_LANES float level(float ratio, float) const {
    return rounded_to_bits(fminf(fmaxf(ratio, -448.0f), 448.0f), 3, -6);
  }
  LAYERPRESS_LANES float value(float level, float) const { return level; }
  LAYERPRESS_LANES std::int8_t encode(float level) const {
    const std::uint32_t bits = bits_of(level), sign = (bits >> 24) & 0x80u;
    const float absolute = fabsf(level);
    if (absolute < 0.015625f) return static_cast<std::int8_t>(sign | static_cast<std::uint32_t>(absolute * 512.0f));
    return static_cast<std::int8_t>(sign | (((bits & 0x7FFFFFFFu) >> 20) - (120u << 3)));
  }
};

}  // namespace layerpress::kernels::cuda
