#pragma once

#include <cstdint>
#include <string>

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

/// A convolution whose stride equals its size: unfolded patches [patches, channels * patch_size²] -> [patches,
/// features].
struct PatchEmbedding {
  static constexpr const char* kKind = "patch_embedding";
  std::string weight;  ///< [features, channels, patch_size, patch_size]
  std::int64_t channels = 3;
  std::int64_t image_size = 0;  ///< width and height of a tile, in pixels
  std::int64_t patch_size = 0;
  std::int64_t tiles = 0;          ///< tiles per image
  std::int64_t aspect_ratios = 0;  ///< number of tile arrangements, whose ids start from 1
  std::int64_t features = 0;
  template <typename Self, typename Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("weight", self.weight), field("channels", self.channels), field("image_size", self.image_size);
    field("patch_size", self.patch_size), field("tiles", self.tiles), field("aspect_ratios", self.aspect_ratios);
    field("features", self.features);
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
};

/// Zeros the padding rows of every tile.
struct ZeroPadding {
  static constexpr const char* kKind = "zero_padding";
  std::int64_t patches = 0;
  template <typename Self, typename Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("patches", self.patches);
  }
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
};

/// function(x), with the functions of GatedActivation.
struct Activation {
  static constexpr const char* kKind = "activation";
  std::string function = "gelu";
  template <typename Self, typename Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("function", self.function);
  }
};

/// a + tanh(gate) * b.
struct GatedAdd {
  static constexpr const char* kKind = "gated_add";
  std::string gate;  ///< [1]
  template <typename Self, typename Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("gate", self.gate);
  }
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
};

/// The rows of tokens of samples with images.
struct SelectIllustrated {
  static constexpr const char* kKind = "select_illustrated";
  template <typename Self, typename Visitor>
  static void visit(Self&, Visitor&&) {}
};

/// Inputs x, y: x with the rows of SelectIllustrated replaced by y.
struct MergeIllustrated {
  static constexpr const char* kKind = "merge_illustrated";
  template <typename Self, typename Visitor>
  static void visit(Self&, Visitor&&) {}
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
};

/// Zeros the rows of tokens that have no tile to attend to.
struct MaskUnattending {
  static constexpr const char* kKind = "mask_unattending";
  template <typename Self, typename Visitor>
  static void visit(Self&, Visitor&&) {}
};

}  // namespace layerpress::graph
