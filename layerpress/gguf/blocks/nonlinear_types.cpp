#include <algorithm>

#include "layerpress/gguf/blocks/block_families.h"
#include "layerpress/gguf/blocks/code_bits.h"
#include "layerpress/gguf/blocks/grid_type.h"
#include "layerpress/gguf/blocks/scale_searches.h"

namespace layerpress::gguf {
namespace {

constexpr int kNonlinearGroup = 32;

/// Codes for a scale that is not rounded to float16 yet, as ggml chooses them.
void nearest_codes(const float* values, float scale, std::uint8_t* codes) {
  const float inverse = scale != 0 ? 1 / scale : 0;
  for (int j = 0; j < kNonlinearGroup; ++j)
    codes[j] = static_cast<std::uint8_t>(nearest_nonlinear(inverse * values[j]));
}

class NonlinearType : public GridType {
 public:
  void choose_unweighted(const float* values, BlockContents& contents) const override {
    float weights[kMostBlockValues];
    for (int j = 0; j < shape().values; ++j) weights[j] = values[j] * values[j];
    choose(values, weights, contents);
  }

 protected:
  NonlinearType(const Identity& identity, int values)
      : GridType(identity, {values, kNonlinearGroup, 16, 0, kNonlinearLevels},
                 {.divisor = static_cast<float>(values) / 2}) {}
};

class Iq4NlType final : public NonlinearType {
 public:
  Iq4NlType() : NonlinearType({"IQ4_NL", 20, 18}, kNonlinearGroup) {}

  void choose(const float* values, const float* weights, BlockContents& contents) const override {
    const float scale = search_nonlinear(values, weights);
    contents.scale = scale;
    contents.group_scales[0] = 1;
    nearest_codes(values, scale, contents.codes.data());
  }

  void pack(const BlockContents& contents, std::uint8_t* block) const override {
    store_half(contents.scale, block);
    pack_nibbles(contents.codes.data(), kNonlinearGroup, kNonlinearGroup / 2, block + 2);
  }

  void unpack(const std::uint8_t* block, BlockContents& contents) const override {
    contents = {};
    contents.scale = load_half(block);
    contents.group_scales[0] = 1;
    unpack_nibbles(block + 2, kNonlinearGroup, kNonlinearGroup / 2, contents.codes.data());
  }
};

/// Eight groups with scales of six bits.
class Iq4XsType final : public NonlinearType {
 public:
  Iq4XsType() : NonlinearType({"IQ4_XS", 23, 136}, kMostBlockValues) {}

  void choose(const float* values, const float* weights, BlockContents& contents) const override {
    float scales[8];
    for (int g = 0; g < 8; ++g)
      scales[g] = search_nonlinear(values + g * kNonlinearGroup, weights + g * kNonlinearGroup);
    const float scale = -farthest_from_zero(8, scales) / 32, inverse = scale != 0 ? 1 / scale : 0;
    contents.scale = scale;
    for (int g = 0; g < 8; ++g) {
      const int multiple = std::clamp(nearest_integer(inverse * scales[g]), -32, 31);
      contents.group_scales[static_cast<std::size_t>(g)] = static_cast<std::int8_t>(multiple);
      nearest_codes(values + g * kNonlinearGroup, scale * static_cast<float>(multiple),
                    contents.codes.data() + g * kNonlinearGroup);
    }
  }

  void pack(const BlockContents& contents, std::uint8_t* block) const override {
    store_half(contents.scale, block);
    unsigned high = 0;
    for (std::size_t g = 0; g < 8; g += 2) {
      const unsigned even = static_cast<unsigned>(contents.group_scales[g] + 32),
                     odd = static_cast<unsigned>(contents.group_scales[g + 1] + 32);
      block[4 + g / 2] = static_cast<std::uint8_t>((even & 15) | (odd & 15) << 4);
      high |= (even >> 4 | odd >> 4 << 2) << (2 * g);
    }
    block[2] = static_cast<std::uint8_t>(high & 255);
    block[3] = static_cast<std::uint8_t>(high >> 8);
    pack_nibbles(contents.codes.data(), kMostBlockValues, kNonlinearGroup / 2, block + 8);
  }

  void unpack(const std::uint8_t* block, BlockContents& contents) const override {
    contents = {};
    contents.scale = load_half(block);
    for (std::size_t g = 0; g < 8; ++g) {
      const int low = block[4 + g / 2] >> (4 * (g % 2)) & 15, high = block[2 + g / 4] >> (2 * (g % 4)) & 3;
      contents.group_scales[g] = static_cast<std::int8_t>((low | high << 4) - 32);
    }
    unpack_nibbles(block + 8, kMostBlockValues, kNonlinearGroup / 2, contents.codes.data());
  }
};

}  // namespace

std::vector<const BlockType*> nonlinear_types() {
  static const Iq4NlType iq4_nl;
  static const Iq4XsType iq4_xs;
  return {&iq4_nl, &iq4_xs};
}

}  // namespace layerpress::gguf
