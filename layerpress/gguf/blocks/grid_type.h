#pragma once

#include <c10/util/Half.h>

#include <array>
#include <cstdint>
#include <span>

#include "layerpress/gguf/blocks/block_type.h"

namespace layerpress::gguf {

constexpr int kMostBlockValues = 256;
constexpr int kMostGroups = 16;
constexpr int kMostFloatScales = 4;
constexpr int kBlocksTogether = 4;  ///< for which choose_blocks is quickest

/// What one block stores, unpacked. The values of group g are scale * group_scales[g] * level(code) - minimum * group_minimums[g].
struct BlockContents {
  c10::Half scale = 0.0f;
  c10::Half minimum = 0.0f;
  std::array<std::int8_t, kMostGroups> group_scales{};
  std::array<std::uint8_t, kMostGroups> group_minimums{};
  std::array<std::uint8_t, kMostBlockValues> codes{};
  /// Of groups whose scales are floats of eight bits; these bits are then in group_scales.
  std::array<float, kMostFloatScales> float_scales{};
  bool has_float_scales = false;

  float scale_of(int group) const {
    if (has_float_scales) return float_scales[static_cast<std::size_t>(group)];
    return static_cast<float>(scale) * static_cast<float>(group_scales[static_cast<std::size_t>(group)]);
  }
  float minimum_of(int group) const {
    return static_cast<float>(minimum) * static_cast<float>(group_minimums[static_cast<std::size_t>(group)]);
  }
};

/// What the codes of a grid type mean.
struct GridShape {
  int values = 0;                 ///< in a block
  int group = 0;                  ///< values that share a scale
  int codes = 0;                  ///< different ones
  int lowest = 0;                 ///< level of code 0, if levels are consecutive integers
  const float* levels = nullptr;  ///< of the codes, increasing, if they are not consecutive integers
  bool has_minimums = false;

  int groups() const { return values / group; }
  float level(int code) const;
  /// The code whose level is nearest to a value that was divided by the scale, after adding the minimum.
  int nearest(float value) const;
};

/// How importance enters: a value's weight is importance * sqrt(spread + value²), where spread = factor * sum of squares / divisor.
struct ImportanceRule {
  bool of_row = false;  ///< sum and divisor are those of the whole row, and not the block's
  bool alone = false;   ///< the weight is the importance
  float factor = 1;
  float divisor = 1;
};

/// A type whose values lie on a grid of codes, scales and perhaps minimums: all types but floats. Choosing the parameters of
/// a block, choosing codes for them and packing are separate steps, so that a solver may choose codes in its own way.
class GridType : public BlockType {
 public:
  std::string name() const override { return name_; }
  std::uint32_t id() const override { return id_; }
  std::int64_t block_values() const override { return shape_.values; }
  std::int64_t block_bytes() const override { return bytes_; }
  bool uses_importance() const override { return true; }
  void decode(const std::uint8_t* blocks, std::int64_t columns, float* row) const override;
  void round(const float* row, std::int64_t columns, const float* importance, std::uint8_t* blocks) const override;

  const GridShape& shape() const { return shape_; }

  /// Chooses parameters and codes of a block, each squared error being weighted by `weights`.
  virtual void choose(const float* values, const float* weights, BlockContents& contents) const = 0;
  /// The same for a few consecutive blocks.
  virtual void choose_blocks(const float* values, const float* weights, std::span<BlockContents> blocks) const;
  /// As choose, in the way in which ggml does without importance.
  virtual void choose_unweighted(const float* values, BlockContents& contents) const = 0;

  virtual void pack(const BlockContents& contents, std::uint8_t* block) const = 0;
  virtual void unpack(const std::uint8_t* block, BlockContents& contents) const = 0;

 protected:
  struct Identity {
    const char* name;
    std::uint32_t id;
    std::int64_t bytes;
  };
  GridType(const Identity& identity, const GridShape& shape, const ImportanceRule& rule)
      : name_(identity.name), id_(identity.id), bytes_(identity.bytes), shape_(shape), rule_(rule) {}

  /// Chooses codes for the parameters in `contents`; codes of groups whose scale is 0 stay.
  void choose_codes(const float* values, BlockContents& contents) const;

 private:
  void weigh(const float* values, const float* importance, float row_spread, float* weights) const;

  const char* name_;
  std::uint32_t id_;
  std::int64_t bytes_;
  GridShape shape_;
  ImportanceRule rule_;
};

}  // namespace layerpress::gguf
