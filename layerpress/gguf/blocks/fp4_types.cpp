#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "layerpress/gguf/blocks/block_families.h"
#include "layerpress/gguf/blocks/code_bits.h"
#include "layerpress/gguf/blocks/grid_type.h"

namespace layerpress::gguf {
namespace {

/// Twice the values of FP4; scales are halved in turn.
constexpr int kFp4Values = 16;
constexpr float kFp4Levels[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

/// The codes of the levels that are nearest to kFp4Values values; of levels that are equally near, the one of the lowest code.
void nearest_fp4(const float* values, float scale, std::uint8_t* codes) {
  float least[kFp4Values];
  int best[kFp4Values]{};
  for (int j = 0; j < kFp4Values; ++j) least[j] = std::fabs(values[j]);
  for (int code = 1; code < 16; ++code) {
    const float level = kFp4Levels[code] * scale;
    for (int j = 0; j < kFp4Values; ++j) {
      const float error = std::fabs(level - values[j]);
      best[j] = error < least[j] ? code : best[j];
      least[j] = error < least[j] ? error : least[j];
    }
  }
  for (int j = 0; j < kFp4Values; ++j) codes[j] = static_cast<std::uint8_t>(best[j]);
}

float greatest_magnitude(const float* values, int count) {
  float greatest = 0;
  for (int j = 0; j < count; ++j) greatest = std::max(greatest, std::fabs(values[j]));
  return greatest;
}

/// The levels in their order, from -12 to -0 and from 0 to 12.
constexpr float kSortedLevels[16] = {-12, -8, -6, -4, -3, -2, -1, -0.0f, 0, 1, 2, 3, 4, 6, 8, 12};

/// From FP4, whose highest bit is the sign, to the place among the sorted levels, and back.
constexpr std::uint8_t place_of_fp4(std::uint8_t code) {
  return static_cast<std::uint8_t>(code < 8 ? 8 + code : 15 - code);
}
constexpr std::uint8_t fp4_of_place(std::uint8_t place) {
  return static_cast<std::uint8_t>(place >= 8 ? place - 8 : 15 - place);
}

/// FP4 in groups with a scale of eight bits; of a group's values, the first half is in low and the second half in high nibbles.
class Fp4Type : public GridType {
 public:
  bool uses_importance() const override { return false; }

  void decode(const std::uint8_t* blocks, std::int64_t columns, float* row) const override {
    for (; columns > 0; columns -= block_values(), blocks += block_bytes())
      for (int g = 0; g < groups(); ++g, row += group()) {
        const float scale = scale_of(blocks[g]);
        const std::uint8_t* bytes = blocks + groups() + g * group() / 2;
        for (int j = 0; j < group() / 2; ++j) {
          row[j] = kFp4Levels[bytes[j] & 15] * scale;
          row[j + group() / 2] = kFp4Levels[bytes[j] >> 4] * scale;
        }
      }
  }

  /// ggml looks at no importance.
  void round(const float* row, std::int64_t columns, const float*, std::uint8_t* blocks) const override {
    for (; columns > 0; columns -= block_values(), blocks += block_bytes(), row += block_values()) {
      BlockContents contents;
      choose_unweighted(row, contents);
      pack(contents, blocks);
    }
  }

  /// The scale that ggml chooses, or one near it, whichever loses least.
  void choose(const float* values, const float* weights, BlockContents& contents) const override {
    contents.has_float_scales = true;
    for (int g = 0; g < groups(); ++g, values += group(), weights += group()) {
      const int usual = scale_for(greatest_magnitude(values, group()));
      float least = std::numeric_limits<float>::infinity();
      for (int stored = std::max(0, usual - farthest_); stored <= std::min(greatest_, usual + farthest_); ++stored) {
        const float error = error_of(values, weights, scale_of(static_cast<std::uint8_t>(stored)));
        if (!(error < least)) continue;
        least = error;
        set_scale(g, static_cast<std::uint8_t>(stored), contents);
      }
    }
    values -= block_values();
    choose_codes(values, contents);
  }

  void choose_unweighted(const float* values, BlockContents& contents) const override {
    contents.has_float_scales = true;
    for (int g = 0; g < groups(); ++g, values += group()) {
      set_scale(g, scale_for(greatest_magnitude(values, group())), contents);
      std::uint8_t* codes = contents.codes.data() + g * group();
      for (int j = 0; j < group(); j += kFp4Values) nearest_fp4(values + j, contents.scale_of(g), codes + j);
      for (int j = 0; j < group(); ++j) codes[j] = place_of_fp4(codes[j]);
    }
  }

  void pack(const BlockContents& contents, std::uint8_t* block) const override {
    for (int g = 0; g < groups(); ++g) {
      block[g] = static_cast<std::uint8_t>(contents.group_scales[static_cast<std::size_t>(g)]);
      std::uint8_t codes[32];
      for (int j = 0; j < group(); ++j)
        codes[j] = fp4_of_place(contents.codes[static_cast<std::size_t>(g * group() + j)]);
      pack_nibbles(codes, group(), group() / 2, block + groups() + g * group() / 2);
    }
  }

  void unpack(const std::uint8_t* block, BlockContents& contents) const override {
    contents = {};
    contents.has_float_scales = true;
    for (int g = 0; g < groups(); ++g) {
      set_scale(g, block[g], contents);
      std::uint8_t* codes = contents.codes.data() + g * group();
      unpack_nibbles(block + groups() + g * group() / 2, group(), group() / 2, codes);
      for (int j = 0; j < group(); ++j) codes[j] = place_of_fp4(codes[j]);
    }
  }

 protected:
  /// `greatest`: the greatest stored scale that is a number; `farthest`: how far choose() goes from the usual one.
  Fp4Type(const Identity& identity, int groups, int group, int greatest, int farthest)
      : GridType(identity, {groups * group, group, 16, 0, kSortedLevels}, {}),
        greatest_(greatest),
        farthest_(farthest) {}

  /// Half of what a stored scale means.
  virtual float scale_of(std::uint8_t stored) const = 0;
  virtual std::uint8_t scale_for(float greatest) const = 0;

 private:
  int groups() const { return shape().groups(); }
  int group() const { return shape().group; }

  void set_scale(int g, std::uint8_t stored, BlockContents& contents) const {
    contents.group_scales[static_cast<std::size_t>(g)] = static_cast<std::int8_t>(stored);
    contents.float_scales[static_cast<std::size_t>(g)] = scale_of(stored);
  }

  float error_of(const float* values, const float* weights, float scale) const {
    float error = 0;
    for (int j = 0; j < group(); ++j) {
      const float missed =
          scale == 0 ? values[j] : values[j] - scale * kSortedLevels[shape().nearest(values[j] / scale)];
      error += weights[j] * missed * missed;
    }
    return error;
  }

  int greatest_, farthest_;
};

class Mxfp4Type final : public Fp4Type {
 public:
  Mxfp4Type() : Fp4Type({"MXFP4", 39, 17}, 1, 32, 254, 1) {}

 private:
  float scale_of(std::uint8_t stored) const override {
    const std::uint32_t exponent = stored;  // 2^-128 and 2^-127 are subnormal
    return std::bit_cast<float>(exponent < 2 ? 0x00200000u << exponent : (exponent - 1) << 23);
  }

  std::uint8_t scale_for(float greatest) const override {
    if (!(greatest > 0)) return 0;
    return static_cast<std::uint8_t>(static_cast<int>(std::floor(std::log2(greatest))) - 2 + 127);
  }
};

class Nvfp4Type final : public Fp4Type {
 public:
  Nvfp4Type() : Fp4Type({"NVFP4", 40, 36}, 4, 16, kGreatest, 6) {}

 private:
  static constexpr std::uint8_t kGreatest = 0x7E, kNotANumber = 0x7F;

  float scale_of(std::uint8_t stored) const override {
    if (stored == kNotANumber) return 0;
    const int exponent = stored >> 3 & 15, mantissa = stored & 7;
    return exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -10)
                         : std::ldexp(static_cast<float>(8 + mantissa), exponent - 11);
  }

  /// Ties go up, and all beyond 240 becomes 448, as in ggml.
  std::uint8_t scale_for(float greatest) const override {
    const float scale = std::min(greatest / 6, 448.0f);
    if (!(scale > 0)) return 0;
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(scale);
    const int exponent = static_cast<int>(bits >> 23) - 120;
    if (exponent <= 0) return static_cast<std::uint8_t>(std::min(7, static_cast<int>(std::floor(scale * 512 + 0.5f))));
    const std::uint32_t rounded = (static_cast<std::uint32_t>(exponent) << 3) + (((bits >> 19 & 15) + 1) >> 1);
    return rounded >= 15u << 3 ? kGreatest : static_cast<std::uint8_t>(rounded);
  }
};

}  // namespace

std::vector<const BlockType*> fp4_types() {
  static const Mxfp4Type mxfp4;
  static const Nvfp4Type nvfp4;
  return {&mxfp4, &nvfp4};
}

}  // namespace layerpress::gguf
