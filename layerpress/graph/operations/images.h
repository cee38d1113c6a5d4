#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "layerpress/graph/operations/operation.h"

namespace layerpress::graph {

// Images beside text. An image is cut into tiles and a tile into patches. Every image has rows for the same number of
// tiles, filled or not. In the encoder, a tile has one row for the class embedding, one per patch, and zero rows up to
// a multiple of 8. Rows of kind kPatches are therefore images * tiles * padded_rows(patches), and rows of kind kVision,
// which text attends to, are images * tiles * patches, where `patches` includes the class embedding.
//
// Only tokens of samples with images (kIllustrated) pass through the layers that attend to images. The tokens of other
// samples skip these layers.

/// Rows of a tile, including its padding.
constexpr std::int64_t padded_rows(std::int64_t patches) { return (patches + 7) / 8 * 8; }

/// The images that a model accepts.
struct ImageGeometry {
  std::int64_t channels = 0;
  std::int64_t image_size = 0;  ///< width and height of a tile, in pixels
  std::int64_t patch_size = 0;
  std::int64_t tiles = 0;          ///< tiles per image, including empty ones
  std::int64_t aspect_ratios = 0;  ///< number of ids, which start from 1

  std::int64_t patches_per_side() const { return patch_size > 0 ? image_size / patch_size : 0; }
  /// Rows of a tile that text attends to: its patches and the class embedding.
  std::int64_t patches() const { return patches_per_side() * patches_per_side() + 1; }
  /// Rows of a tile in the encoder.
  std::int64_t tile_rows() const { return padded_rows(patches()); }
  bool operator==(const ImageGeometry&) const = default;
};

/// A convolution whose stride equals its size: unfolded patches [patches, channels * patch_size²] -> [patches,
/// features].
struct PatchEmbedding : ImageGeometry {
  static constexpr const char* kKind = "patch_embedding";
  std::string weight;  ///< [features, channels, patch_size, patch_size]
  std::int64_t features = 0;
  template <typename Self, typename Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("weight", self.weight), field("channels", self.channels), field("image_size", self.image_size);
    field("patch_size", self.patch_size), field("tiles", self.tiles), field("aspect_ratios", self.aspect_ratios);
    field("features", self.features);
  }
  WeightUses weights() const { return {{weight, {features, channels, patch_size, patch_size}}}; }
  void check(const NodeCheck& node) const {
    node.expect(1, {channels * patch_size * patch_size}), node.in_patches();
    node.require(patch_size > 0 && image_size >= patch_size && tiles > 0, "tiles hold patches");
    node.output(features);
  }
};

/// x + tanh(gate) * table[aspect ratio of the image][tile], for all rows of a tile.
struct TileEmbedding {
  static constexpr const char* kKind = "tile_embedding";
  std::string table;  ///< [aspect_ratios + 1, tiles * features]
  std::string gate;   ///< [1]
  std::int64_t tiles = 0;
  std::int64_t patches = 0;
  std::int64_t aspect_ratios = 0;
  std::int64_t features = 0;
  template <typename Self, typename Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("table", self.table), field("gate", self.gate), field("tiles", self.tiles), field("patches", self.patches);
    field("aspect_ratios", self.aspect_ratios), field("features", self.features);
  }
  WeightUses weights() const { return {{table, {aspect_ratios + 1, tiles * features}}, {gate, {1}}}; }
  void check(const NodeCheck& node) const { node.expect(1, {features}), node.in_patches(), node.output(features); }
};

/// Replaces the first row of each tile by the weight.
struct ClassEmbedding {
  static constexpr const char* kKind = "class_embedding";
  std::string weight;  ///< [features]
  std::int64_t patches = 0;
  std::int64_t features = 0;
  template <typename Self, typename Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("weight", self.weight), field("patches", self.patches), field("features", self.features);
  }
  WeightUses weights() const { return {{weight, {features}}}; }
  void check(const NodeCheck& node) const { node.expect(1, {features}), node.in_patches(), node.output(features); }
};

/// x + (1 - tanh(gate)) * embedding[patch] + tanh(gate) * table[aspect ratio of the image][tile][patch]; padding is
/// unchanged.
struct PatchPosition {
  static constexpr const char* kKind = "patch_position";
  std::string embedding;  ///< [patches, features]
  std::string table;      ///< [aspect_ratios + 1, tiles * patches * features]
  std::string gate;       ///< [1]
  std::int64_t tiles = 0;
  std::int64_t patches = 0;
  std::int64_t aspect_ratios = 0;
  std::int64_t features = 0;
  template <typename Self, typename Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("embedding", self.embedding), field("table", self.table), field("gate", self.gate);
    field("tiles", self.tiles), field("patches", self.patches), field("aspect_ratios", self.aspect_ratios);
    field("features", self.features);
  }
  WeightUses weights() const {
    return {{embedding, {patches, features}}, {table, {aspect_ratios + 1, tiles * patches * features}}, {gate, {1}}};
  }
  void check(const NodeCheck& node) const { node.expect(1, {features}), node.in_patches(), node.output(features); }
};

/// Zeros the padding rows of every tile.
struct ZeroPadding {
  static constexpr const char* kKind = "zero_padding";
  std::int64_t patches = 0;
  template <typename Self, typename Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("patches", self.patches);
  }
  void check(const NodeCheck& node) const { node.expect(1, {}), node.in_patches(), node.output(node.features(0)); }
  ScalePassage passage(std::size_t input) const { return passes_only(0, input); }
};

/// Attention among the rows of each image. Inputs q, k, v. Rows of filled tiles see all rows. Padding rows and rows of
/// empty tiles see only rows of filled tiles, not each other.
struct VisionAttention {
  static constexpr const char* kKind = "vision_attention";
  std::int64_t heads = 0;
  std::int64_t head_dim = 0;
  double scale = 1;
  std::int64_t tiles = 0;
  std::int64_t patches = 0;
  template <typename Self, typename Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("heads", self.heads), field("head_dim", self.head_dim), field("scale", self.scale);
    field("tiles", self.tiles), field("patches", self.patches);
  }
  void check(const NodeCheck& node) const {
    const std::int64_t size = heads * head_dim;
    node.expect(3, {size, size, size}), node.in_patches(), node.output(size);
  }
  std::vector<std::string> details(const std::string&) const { return {heads_text(heads, heads)}; }
  ScalePassage passage(std::size_t input) const { return passes_only(2, input); }
};

/// The features that text attends to: input 0 without padding, then the other inputs without padding, interleaved by
/// feature.
struct VisionFeatures {
  static constexpr const char* kKind = "vision_features";
  std::int64_t patches = 0;
  template <typename Self, typename Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("patches", self.patches);
  }
  void check(const NodeCheck& node) const {
    const auto count = node.inputs();
    node.expect(count, std::vector<std::int64_t>(count, node.features(0))), node.in_patches();
    node.output(node.features(0) * static_cast<std::int64_t>(count), Rows::kVision);
  }
};

/// The rows of tokens of samples with images.
struct SelectIllustrated {
  static constexpr const char* kKind = "select_illustrated";
  template <typename Self, typename Visitor>
  static void visit(Self&, Visitor&&) {}
  void check(const NodeCheck& node) const {
    node.expect(1, {});
    node.require(node.rows(0) == Rows::kTokens, "tokens are selected");
    node.output(node.features(0), Rows::kIllustrated);
  }
  ScalePassage passage(std::size_t input) const { return passes_only(0, input); }
  bool keeps_rows(std::size_t) const { return true; }
};

/// Inputs x, y: x with the rows of SelectIllustrated replaced by y.
struct MergeIllustrated {
  static constexpr const char* kKind = "merge_illustrated";
  template <typename Self, typename Visitor>
  static void visit(Self&, Visitor&&) {}
  void check(const NodeCheck& node) const {
    node.expect(2, {node.features(0), node.features(0)});
    node.require(node.rows(0) == Rows::kTokens && node.rows(1) == Rows::kIllustrated,
                 "tokens of all samples and of some");
    node.output(node.features(0));
  }
  bool keeps_rows(std::size_t) const { return true; }
};

/// Attention from tokens of samples with images (q) to the images of their sample (k, v). The batch says which tiles
/// each token attends to; a token without tiles attends to all of them.
struct CrossAttention {
  static constexpr const char* kKind = "cross_attention";
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  double scale = 1;
  std::int64_t tiles = 0;
  std::int64_t patches = 0;
  template <typename Self, typename Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("heads", self.heads), field("kv_heads", self.kv_heads), field("head_dim", self.head_dim);
    field("scale", self.scale), field("tiles", self.tiles), field("patches", self.patches);
  }
  void check(const NodeCheck& node) const {
    node.expect(3, {heads * head_dim, kv_heads * head_dim, kv_heads * head_dim});
    node.require(kv_heads > 0 && heads % kv_heads == 0, "heads are a multiple of kv_heads");
    node.require(node.rows(0) == Rows::kIllustrated && node.rows(1) == Rows::kVision && node.rows(2) == Rows::kVision,
                 "illustrated tokens attend to images");
    node.output(heads * head_dim);
  }
  std::vector<std::string> details(const std::string&) const { return {heads_text(heads, kv_heads)}; }
  ScalePassage passage(std::size_t input) const {
    return heads == kv_heads ? passes_only(2, input) : ScalePassage::kBlocked;
  }
};

/// Zeros the rows of tokens that have no tile to attend to.
struct MaskUnattending {
  static constexpr const char* kKind = "mask_unattending";
  template <typename Self, typename Visitor>
  static void visit(Self&, Visitor&&) {}
  void check(const NodeCheck& node) const {
    node.expect(1, {});
    node.require(node.rows(0) == Rows::kIllustrated, "rows are illustrated tokens");
    node.output(node.features(0));
  }
  ScalePassage passage(std::size_t input) const { return passes_only(0, input); }
  bool keeps_rows(std::size_t) const { return true; }
};

using ImageOperations =
    Family<PatchEmbedding, TileEmbedding, ClassEmbedding, PatchPosition, ZeroPadding, VisionAttention, VisionFeatures,
           SelectIllustrated, MergeIllustrated, CrossAttention, MaskUnattending>;

}  // namespace layerpress::graph
