#include <algorithm>
#include <cmath>
#include <limits>

#include "layerpress/gguf/blocks/block_families.h"
#include "layerpress/gguf/blocks/code_bits.h"
#include "layerpress/gguf/blocks/grid_type.h"
#include "layerpress/gguf/blocks/scale_searches.h"

namespace layerpress::gguf {
namespace {

static_assert(kBlocksTogether == kAffineTogether);

constexpr int kFlatValues = 32;
constexpr AffineSteps kFlatSteps{-0.9f, 0.05f, 37};

/// Without its fraction; 0 if it is not finite.
inline int whole_part(float value) { return std::fabs(value) < 1e9f ? static_cast<int>(value) : 0; }

/// By its bits, so that it inverts itself for every value.
c10::Half negative(c10::Half value) { return {static_cast<std::uint16_t>(value.x ^ 0x8000u), c10::Half::from_bits()}; }

/// 32 values with one scale, and perhaps one minimum: Q4_0, Q4_1, Q5_0 and Q5_1.
class FlatType final : public GridType {
 public:
  FlatType(const Identity& identity, int bits, bool has_minimum)
      : GridType(identity,
                 {kFlatValues, kFlatValues, 1 << bits, has_minimum ? 0 : -(1 << (bits - 1)), nullptr, has_minimum},
                 {.of_row = true}) {}

  void choose(const float* values, const float* weights, BlockContents& contents) const override {
    choose_blocks(values, weights, {&contents, 1});
  }

  void choose_blocks(const float* values, const float* weights, std::span<BlockContents> blocks) const override {
    for (std::size_t b = 0; b < blocks.size(); b += kBlocksTogether) {
      const std::size_t first = b * kFlatValues, count = std::min<std::size_t>(kBlocksTogether, blocks.size() - b);
      choose_some(values + first, weights + first, blocks.subspan(b, count));
    }
  }

  void choose_unweighted(const float* values, BlockContents& contents) const override {
    float low = std::numeric_limits<float>::max(), high = std::numeric_limits<float>::lowest(), farthest = 0;
    for (int j = 0; j < kFlatValues; ++j) {
      low = std::min(low, values[j]);
      high = std::max(high, values[j]);
      if (std::fabs(values[j]) > std::fabs(farthest)) farthest = values[j];
    }
    const bool affine = shape().has_minimums;
    const float scale =
        affine ? (high - low) / static_cast<float>(shape().codes - 1) : farthest / static_cast<float>(shape().lowest);
    const float zero = affine ? low : 0, middle = 0.5f - static_cast<float>(shape().lowest);
    const float inverse = scale != 0 ? 1 / scale : 0;
    set_parameters(scale, -zero, contents);
    for (std::size_t j = 0; j < kFlatValues; ++j)
      contents.codes[j] =
          static_cast<std::uint8_t>(std::min(shape().codes - 1, whole_part((values[j] - zero) * inverse + middle)));
  }

  void pack(const BlockContents& contents, std::uint8_t* block) const override {
    store_half(contents.scale, block);
    if (shape().has_minimums) store_half(negative(contents.minimum), block + 2);
    block += shape().has_minimums ? 4 : 2;
    if (shape().codes == 32) {
      pack_fifth_bits(contents.codes.data(), block);
      block += 4;
    }
    pack_nibbles(contents.codes.data(), kFlatValues, kFlatValues / 2, block);
  }

  void unpack(const std::uint8_t* block, BlockContents& contents) const override {
    contents = {};
    contents.scale = load_half(block);
    contents.group_scales[0] = contents.group_minimums[0] = 1;
    if (shape().has_minimums) contents.minimum = negative(load_half(block + 2));
    block += shape().has_minimums ? 4 : 2;
    if (shape().codes == 32) {
      unpack_fifth_bits(block, contents.codes.data());
      block += 4;
    }
    unpack_nibbles(block, kFlatValues, kFlatValues / 2, contents.codes.data());
  }

 private:
  /// At most kBlocksTogether blocks.
  void choose_some(const float* values, const float* weights, std::span<BlockContents> blocks) const {
    std::uint8_t codes[kBlocksTogether * kFlatValues];
    AffineFit fits[kBlocksTogether];
    if (shape().has_minimums)
      search_affine({static_cast<int>(blocks.size()), kFlatValues, values, weights}, shape().codes - 1, kFlatSteps,
                    fits, codes);
    for (std::size_t b = 0; b < blocks.size(); ++b) {
      const std::size_t first = b * kFlatValues;
      if (!shape().has_minimums)
        fits[b].scale = search_symmetric(kFlatValues, values + first, weights + first, -shape().lowest, codes + first);
      std::copy_n(codes + first, kFlatValues, blocks[b].codes.begin());
      set_parameters(fits[b].scale, fits[b].minimum, blocks[b]);
    }
  }

  static void set_parameters(float scale, float minimum, BlockContents& contents) {
    contents.scale = scale;
    contents.minimum = minimum;
    contents.group_scales[0] = contents.group_minimums[0] = 1;
  }
};

/// 32 bytes with one scale.
class ByteType final : public GridType {
 public:
  ByteType() : GridType({"Q8_0", 8, 34}, {kFlatValues, kFlatValues, 256, -128}, {}) {}

  bool uses_importance() const override { return false; }

  void choose(const float* values, const float*, BlockContents& contents) const override {
    choose_unweighted(values, contents);
  }

  void choose_unweighted(const float* values, BlockContents& contents) const override {
    float greatest = 0;
    for (int j = 0; j < kFlatValues; ++j) greatest = std::max(greatest, std::fabs(values[j]));
    const float scale = greatest / 127, inverse = scale != 0 ? 1 / scale : 0;
    contents.scale = scale;
    contents.group_scales[0] = 1;
    for (std::size_t j = 0; j < kFlatValues; ++j)
      contents.codes[j] = static_cast<std::uint8_t>(whole_part(std::round(values[j] * inverse)) + 128);
  }

  void pack(const BlockContents& contents, std::uint8_t* block) const override {
    store_half(contents.scale, block);
    for (std::size_t j = 0; j < kFlatValues; ++j) block[2 + j] = contents.codes[j] ^ 128;
  }

  void unpack(const std::uint8_t* block, BlockContents& contents) const override {
    contents = {};
    contents.scale = load_half(block);
    contents.group_scales[0] = 1;
    for (std::size_t j = 0; j < kFlatValues; ++j) contents.codes[j] = block[2 + j] ^ 128;
  }
};

}  // namespace

std::vector<const BlockType*> flat_types() {
  static const FlatType q4_0({"Q4_0", 2, 18}, 4, false), q4_1({"Q4_1", 3, 20}, 4, true);
  static const FlatType q5_0({"Q5_0", 6, 22}, 5, false), q5_1({"Q5_1", 7, 24}, 5, true);
  static const ByteType q8_0;
  return {&q4_0, &q4_1, &q5_0, &q5_1, &q8_0};
}

}  // namespace layerpress::gguf
