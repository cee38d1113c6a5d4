#include <algorithm>
#include <cmath>

#include "layerpress/gguf/blocks/block_families.h"
#include "layerpress/gguf/blocks/code_bits.h"
#include "layerpress/gguf/blocks/grid_type.h"
#include "layerpress/gguf/blocks/scale_searches.h"

namespace layerpress::gguf {
namespace {

constexpr AffineSteps kWeightedSteps{-0.9f, 0.05f, 37};

/// A scale and a minimum for each group of a block, still to be stored as multiples of common units.
struct GroupFits {
  float scales[kMostGroups], minimums[kMostGroups], weights[kMostGroups];
};

/// The multiples of greatest / greatest_code that are nearest to scales or minimums; returns the unit.
template <typename Code>
float nearest_multiples(int count, const float* values, int greatest_code, Code* codes) {
  float greatest = 0;
  for (int g = 0; g < count; ++g) greatest = std::max(greatest, values[g]);
  const auto steps = static_cast<float>(greatest_code);
  const float inverse = greatest > 0 ? steps / greatest : 0;
  for (int g = 0; g < count; ++g)
    codes[g] = static_cast<Code>(std::clamp(nearest_integer(inverse * values[g]), 0, greatest_code));
  return greatest / steps;
}

/// Super-blocks of groups with a scale and a minimum: Q2_K, Q4_K and Q5_K.
class AffineType : public GridType {
 public:
  void choose(const float* values, const float* weights, BlockContents& contents) const override {
    GroupFits groups;
    fit_groups(values, weights, kWeightedSteps, groups, contents);
    for (int g = 0; g < shape().groups(); ++g) {
      groups.weights[g] = 0;
      for (int j = 0; j < shape().group; ++j) groups.weights[g] += weights[g * shape().group + j];
    }
    std::uint8_t codes[kMostGroups];
    contents.scale = search_unit(shape().groups(), groups.scales, groups.weights, greatest_scale_, codes);
    std::copy_n(codes, shape().groups(), contents.group_scales.begin());
    contents.minimum =
        search_unit(shape().groups(), groups.minimums, groups.weights, greatest_scale_, contents.group_minimums.data());
    choose_codes(values, contents);
  }

  void choose_unweighted(const float* values, BlockContents& contents) const override {
    GroupFits groups;
    float weights[kMostBlockValues];
    for (int first = 0; first < kMostBlockValues; first += shape().group) weigh_group(values + first, weights + first);
    fit_groups(values, weights, plain_steps_, groups, contents);
    contents.scale = nearest_multiples(shape().groups(), groups.scales, greatest_scale_, contents.group_scales.data());
    contents.minimum =
        nearest_multiples(shape().groups(), groups.minimums, greatest_scale_, contents.group_minimums.data());
    choose_codes(values, contents);
  }

 protected:
  AffineType(const Identity& identity, int group, int bits, int greatest_scale, const ImportanceRule& rule,
             const AffineSteps& plain_steps)
      : GridType(identity, {kMostBlockValues, group, 1 << bits, 0, nullptr, true}, rule),
        greatest_scale_(greatest_scale),
        plain_steps_(plain_steps) {}

 private:
  void fit_groups(const float* values, const float* weights, const AffineSteps& steps, GroupFits& groups,
                  BlockContents& contents) const {
    AffineFit fits[kMostGroups];
    for (int g = 0; g < shape().groups(); g += kAffineTogether) {
      const int first = g * shape().group;
      search_affine({kAffineTogether, shape().group, values + first, weights + first}, shape().codes - 1, steps,
                    fits + g, contents.codes.data() + first);
    }
    for (int g = 0; g < shape().groups(); ++g) {
      groups.scales[g] = fits[g].scale;
      groups.minimums[g] = fits[g].minimum;
    }
  }

  /// The weights of a group's values if there is no importance.
  void weigh_group(const float* values, float* weights) const {
    float base = 0;
    if (!plain_steps_.absolute_error) {
      for (int j = 0; j < shape().group; ++j) base += values[j] * values[j];
      base = std::sqrt(base / static_cast<float>(shape().group));
    }
    for (int j = 0; j < shape().group; ++j) weights[j] = base + std::fabs(values[j]);
  }

  int greatest_scale_;
  AffineSteps plain_steps_;
};

class Q2KType final : public AffineType {
 public:
  Q2KType() : AffineType({"Q2_K", 10, 84}, 16, 2, 15, {.divisor = 256}, {-0.5f, 0.1f, 16, true}) {}

  void pack(const BlockContents& contents, std::uint8_t* block) const override {
    for (std::size_t g = 0; g < 16; ++g)
      block[g] = static_cast<std::uint8_t>((contents.group_scales[g] & 15) | contents.group_minimums[g] << 4);
    pack_pairs(contents.codes.data(), 0, block + 16);
    store_half(contents.scale, block + 80);
    store_half(contents.minimum, block + 82);
  }

  void unpack(const std::uint8_t* block, BlockContents& contents) const override {
    contents = {};
    for (std::size_t g = 0; g < 16; ++g) {
      contents.group_scales[g] = static_cast<std::int8_t>(block[g] & 15);
      contents.group_minimums[g] = static_cast<std::uint8_t>(block[g] >> 4);
    }
    unpack_pairs(block + 16, 0, contents.codes.data());
    contents.scale = load_half(block + 80);
    contents.minimum = load_half(block + 82);
  }
};

/// Six bits of each scale and minimum: those of groups 4 to 7 are divided between nibbles of their own and the upper bits of groups
/// 0 to 3.
void pack_six_bits(const BlockContents& contents, std::uint8_t* bytes) {
  for (std::size_t g = 0; g < 4; ++g) {
    const auto scale = static_cast<std::uint8_t>(contents.group_scales[g]), minimum = contents.group_minimums[g],
               later_scale = static_cast<std::uint8_t>(contents.group_scales[g + 4]),
               later_minimum = contents.group_minimums[g + 4];
    bytes[g] = static_cast<std::uint8_t>(scale | later_scale >> 4 << 6);
    bytes[g + 4] = static_cast<std::uint8_t>(minimum | later_minimum >> 4 << 6);
    bytes[g + 8] = static_cast<std::uint8_t>((later_scale & 15) | (later_minimum & 15) << 4);
  }
}

void unpack_six_bits(const std::uint8_t* bytes, BlockContents& contents) {
  for (std::size_t g = 0; g < 4; ++g) {
    contents.group_scales[g] = static_cast<std::int8_t>(bytes[g] & 63);
    contents.group_minimums[g] = bytes[g + 4] & 63;
    contents.group_scales[g + 4] = static_cast<std::int8_t>((bytes[g + 8] & 15) | bytes[g] >> 6 << 4);
    contents.group_minimums[g + 4] = static_cast<std::uint8_t>(bytes[g + 8] >> 4 | bytes[g + 4] >> 6 << 4);
  }
}

/// Q4_K and Q5_K.
class SixBitScaleType final : public AffineType {
 public:
  SixBitScaleType(const Identity& identity, int bits, const AffineSteps& plain_steps)
      : AffineType(identity, 32, bits, 63, {.factor = 2, .divisor = 256}, plain_steps) {}

  void pack(const BlockContents& contents, std::uint8_t* block) const override {
    store_half(contents.scale, block);
    store_half(contents.minimum, block + 2);
    pack_six_bits(contents, block + 4);
    if (shape().codes == 32) pack_bits(contents.codes.data(), 4, block + 16);
    pack_nibbles(contents.codes.data(), kMostBlockValues, 32, block + (shape().codes == 32 ? 48 : 16));
  }

  void unpack(const std::uint8_t* block, BlockContents& contents) const override {
    contents = {};
    contents.scale = load_half(block);
    contents.minimum = load_half(block + 2);
    unpack_six_bits(block + 4, contents);
    if (shape().codes == 32) unpack_bits(block + 16, 4, contents.codes.data());
    unpack_nibbles(block + (shape().codes == 32 ? 48 : 16), kMostBlockValues, 32, contents.codes.data());
  }
};

}  // namespace

std::vector<const BlockType*> affine_types() {
  static const Q2KType q2_k;
  static const SixBitScaleType q4_k({"Q4_K", 12, 144}, 4, {-1.0f, 0.1f, 21});
  static const SixBitScaleType q5_k({"Q5_K", 13, 176}, 5, {-0.5f, 0.1f, 16});
  return {&q2_k, &q4_k, &q5_k};
}

}  // namespace layerpress::gguf
