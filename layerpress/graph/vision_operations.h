#pragma once

#include <cstdint>
#include <string>

namespace layerpress::graph {

// Images beside text. An image is cut into tiles and a tile into patches; every image has rows for the same number of tiles,
// whether it fills them or not. The encoder's rows of a tile are: one for the class embedding, one per patch, and zeros up to
// a multiple of 8. So rows of kind kPatches are images * tiles * padded_rows(patches), and those of kind kVision, which text
// attends to, images * tiles * patches, where `patches` counts the class embedding.
//
// Of the text, rows of samples that have images (kIllustrated) pass the layers that attend to images; for the others these
// layers are not there.

/// Rows of a tile with what pads them.
constexpr std::int64_t padded_rows(std::int64_t patches) { return (patches + 7) / 8 * 8; }

/// A convolution whose stride is its size: unfolded patches [patches, channels * patch_size²] -> [patches, features].
struct PatchEmbedding {
  static constexpr const char* kKind = "patch_embedding";
  std::string weight;  ///< [features, channels, patch_size, patch_size]
  std::int64_t channels = 3;
  std::int64_t image_size = 0;  ///< of a tile, in pixels
  std::int64_t patch_size = 0;
  std::int64_t tiles = 0;          ///< of an image
  std::int64_t aspect_ratios = 0;  ///< an image's id of its arrangement of tiles is from 1 to this
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

/// The first row of each tile becomes the weight.
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

/// x + (1 - tanh(gate)) * embedding[patch] + tanh(gate) * table[aspect ratio of the image][tile][patch]; padding stays.
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

/// Zeros in the rows that pad a tile.
struct ZeroPadding {
  static constexpr const char* kKind = "zero_padding";
  std::int64_t patches = 0;
  template <typename Self, typename Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("patches", self.patches);
  }
};

/// Attention among the rows of each image: inputs q, k, v. Rows of tiles that the image fills see all rows; padding and
/// rows of the other tiles see only the former, not each other.
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

/// function(x); the functions of GatedActivation.
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

/// What text attends to: input 0 without padding, then the other inputs without it, interleaved feature by feature.
struct VisionFeatures {
  static constexpr const char* kKind = "vision_features";
  std::int64_t patches = 0;
  template <typename Self, typename Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("patches", self.patches);
  }
};

/// Rows of the illustrated samples' tokens.
struct SelectIllustrated {
  static constexpr const char* kKind = "select_illustrated";
  template <typename Self, typename Visitor>
  static void visit(Self&, Visitor&&) {}
};

/// Inputs x, y: x, with y in the rows that SelectIllustrated takes.
struct MergeIllustrated {
  static constexpr const char* kKind = "merge_illustrated";
  template <typename Self, typename Visitor>
  static void visit(Self&, Visitor&&) {}
};

/// Attention of illustrated tokens (q) to their sample's images (k, v): each to the tiles that the batch says, one that is
/// given none to all.
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

/// Zeros in the rows of illustrated tokens that are given no tile to attend to.
struct MaskUnattending {
  static constexpr const char* kKind = "mask_unattending";
  template <typename Self, typename Visitor>
  static void visit(Self&, Visitor&&) {}
};

}  // namespace layerpress::graph
