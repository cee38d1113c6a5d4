#include <algorithm>
#include <cmath>

#include "layerpress/gguf/blocks/block_families.h"
#include "layerpress/gguf/blocks/code_bits.h"
#include "layerpress/gguf/blocks/grid_type.h"
#include "layerpress/gguf/blocks/scale_searches.h"

namespace layerpress::gguf {
namespace {

constexpr int kSymmetricGroup = 16, kSymmetricGroups = 16;

/// 16 groups of 16 values with scales of six bits.
class Q3KType final : public GridType {
 public:
  Q3KType() : GridType({"Q3_K", 11, 110}, {kMostBlockValues, kSymmetricGroup, 8, -4}, {.factor = 2, .divisor = 256}) {}

  void choose(const float* values, const float* weights, BlockContents& contents) const override {
    float scales[kSymmetricGroups], sums[kSymmetricGroups];
    for (int g = 0; g < kSymmetricGroups; ++g) {
      const int first = g * kSymmetricGroup;
      sums[g] = 0;
      for (int j = 0; j < kSymmetricGroup; ++j) sums[g] += weights[first + j];
      scales[g] = search_symmetric(kSymmetricGroup, values + first, weights + first, 4, contents.codes.data() + first);
    }
    std::uint8_t codes[kSymmetricGroups];
    contents.scale = search_symmetric(kSymmetricGroups, scales, sums, 32, codes);
    for (std::size_t g = 0; g < kSymmetricGroups; ++g)
      contents.group_scales[g] = static_cast<std::int8_t>(codes[g] - 32);
    choose_codes(values, contents);
  }

  void choose_unweighted(const float* values, BlockContents& contents) const override {
    float scales[kSymmetricGroups];
    for (int g = 0; g < kSymmetricGroups; ++g)
      scales[g] = refine_symmetric(values + g * kSymmetricGroup, 4, contents.codes.data() + g * kSymmetricGroup);
    const float farthest = farthest_from_zero(kSymmetricGroups, scales);
    const float inverse = farthest != 0 ? -32 / farthest : 0;
    contents.scale = farthest != 0 ? 1 / inverse : 0;
    for (std::size_t g = 0; g < kSymmetricGroups; ++g)
      contents.group_scales[g] =
          static_cast<std::int8_t>(farthest != 0 ? std::clamp(nearest_integer(inverse * scales[g]), -32, 31) : -32);
    choose_codes(values, contents);
  }

  void pack(const BlockContents& contents, std::uint8_t* block) const override {
    pack_bits(contents.codes.data(), 2, block);
    pack_pairs(contents.codes.data(), 0, block + 32);
    std::uint8_t scales[kSymmetricGroups];
    for (std::size_t g = 0; g < kSymmetricGroups; ++g)
      scales[g] = static_cast<std::uint8_t>(contents.group_scales[g] + 32);
    pack_nibbles(scales, kSymmetricGroups, 8, block + 96);
    for (int j = 0; j < 4; ++j) {
      unsigned byte = 0;
      for (int part = 0; part < 4; ++part) byte |= (scales[4 * part + j] >> 4 & 3u) << (2 * part);
      block[104 + j] = static_cast<std::uint8_t>(byte);
    }
    store_half(contents.scale, block + 108);
  }

  void unpack(const std::uint8_t* block, BlockContents& contents) const override {
    contents = {};
    unpack_bits(block, 2, contents.codes.data());
    unpack_pairs(block + 32, 0, contents.codes.data());
    std::uint8_t scales[kSymmetricGroups]{};
    unpack_nibbles(block + 96, kSymmetricGroups, 8, scales);
    for (std::size_t g = 0; g < kSymmetricGroups; ++g) {
      const int high = block[104 + g % 4] >> (2 * (g / 4)) & 3;
      contents.group_scales[g] = static_cast<std::int8_t>((scales[g] | high << 4) - 32);
    }
    contents.scale = load_half(block + 108);
  }
};

/// 16 groups of 16 values with scales of eight bits.
class Q6KType final : public GridType {
 public:
  Q6KType() : GridType({"Q6_K", 14, 210}, {kMostBlockValues, kSymmetricGroup, 64, -32}, {.alone = true}) {}

  void choose(const float* values, const float* weights, BlockContents& contents) const override {
    float scales[kSymmetricGroups];
    for (int g = 0; g < kSymmetricGroups; ++g) {
      const int first = g * kSymmetricGroup;
      scales[g] = search_symmetric(kSymmetricGroup, values + first, weights + first, 32, contents.codes.data() + first);
    }
    const float farthest = farthest_from_zero(kSymmetricGroups, scales);
    if (std::fabs(farthest) < kSmallestScale) {
      contents = {};
      return;
    }
    const float inverse = -128 / farthest;
    contents.scale = 1 / inverse;
    for (std::size_t g = 0; g < kSymmetricGroups; ++g)
      contents.group_scales[g] = static_cast<std::int8_t>(std::min(127, nearest_integer(inverse * scales[g])));
    choose_codes(values, contents);
  }

  void choose_unweighted(const float* values, BlockContents& contents) const override {
    float weights[kMostBlockValues];
    for (int j = 0; j < kMostBlockValues; ++j) weights[j] = values[j] * values[j];
    choose(values, weights, contents);
  }

  void pack(const BlockContents& contents, std::uint8_t* block) const override {
    pack_nibbles(contents.codes.data(), kMostBlockValues, 64, block);
    pack_pairs(contents.codes.data(), 4, block + 128);
    for (std::size_t g = 0; g < kSymmetricGroups; ++g)
      block[192 + g] = static_cast<std::uint8_t>(contents.group_scales[g]);
    store_half(contents.scale, block + 208);
  }

  void unpack(const std::uint8_t* block, BlockContents& contents) const override {
    contents = {};
    unpack_nibbles(block, kMostBlockValues, 64, contents.codes.data());
    unpack_pairs(block + 128, 4, contents.codes.data());
    for (std::size_t g = 0; g < kSymmetricGroups; ++g)
      contents.group_scales[g] = static_cast<std::int8_t>(block[192 + g]);
    contents.scale = load_half(block + 208);
  }
};

}  // namespace

std::vector<const BlockType*> symmetric_types() {
  static const Q3KType q3_k;
  static const Q6KType q6_k;
  return {&q3_k, &q6_k};
}

}  // namespace layerpress::gguf
