#include <algorithm>
#include <bit>
#include <cmath>

#include "layerpress/gguf/block_families.h"
#include "layerpress/gguf/code_bits.h"

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

/// FP4 in groups with a scale of eight bits; of a group's values, the first half is in low and the second half in high nibbles.
class Fp4Type : public BlockType {
 public:
  std::int64_t block_values() const override { return groups_ * group_; }
  std::int64_t block_bytes() const override { return groups_ * (1 + group_ / 2); }
  bool uses_importance() const override { return false; }

  void decode(const std::uint8_t* blocks, std::int64_t columns, float* row) const override {
    for (; columns > 0; columns -= block_values(), blocks += block_bytes())
      for (int g = 0; g < groups_; ++g, row += group_) {
        const float scale = scale_of(blocks[g]);
        const std::uint8_t* bytes = blocks + groups_ + g * group_ / 2;
        for (int j = 0; j < group_ / 2; ++j) {
          row[j] = kFp4Levels[bytes[j] & 15] * scale;
          row[j + group_ / 2] = kFp4Levels[bytes[j] >> 4] * scale;
        }
      }
  }

  void round(const float* row, std::int64_t columns, const float*, std::uint8_t* blocks) const override {
    for (; columns > 0; columns -= block_values(), blocks += block_bytes())
      for (int g = 0; g < groups_; ++g, row += group_) {
        blocks[g] = scale_for(greatest_magnitude(row, group_));
        std::uint8_t codes[32];
        for (int j = 0; j < group_; j += kFp4Values) nearest_fp4(row + j, scale_of(blocks[g]), codes + j);
        pack_nibbles(codes, group_, group_ / 2, blocks + groups_ + g * group_ / 2);
      }
  }

 protected:
  Fp4Type(int groups, int group) : groups_(groups), group_(group) {}

  /// Half of what a stored scale means.
  virtual float scale_of(std::uint8_t stored) const = 0;
  virtual std::uint8_t scale_for(float greatest) const = 0;

 private:
  int groups_, group_;
};

class Mxfp4Type final : public Fp4Type {
 public:
  Mxfp4Type() : Fp4Type(1, 32) {}
  std::string name() const override { return "MXFP4"; }
  std::uint32_t id() const override { return 39; }

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
  Nvfp4Type() : Fp4Type(4, 16) {}
  std::string name() const override { return "NVFP4"; }
  std::uint32_t id() const override { return 40; }

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

const BlockType& mxfp4_type() {
  static const Mxfp4Type type;
  return type;
}

const BlockType& nvfp4_type() {
  static const Nvfp4Type type;
  return type;
}

}  // namespace layerpress::gguf
