#pragma once

#include <cstdint>
#include <optional>

#include "layerpress/graph/graph.h"

namespace layerpress::graph {

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

/// The geometry of the graph's patch embedding, or nothing for a model without images.
std::optional<ImageGeometry> image_geometry(const Graph& graph);

/// The node that takes what a vision part outside the graph makes of images, or null.
const Node* merging_node(const Graph& graph);

/// How many layers add to the hidden state what that vision part makes.
std::int64_t layers_adding_images(const Graph& graph);

/// Whether tokens of an image attend to later ones of it.
bool has_mutual_attention(const Graph& graph);

}  // namespace layerpress::graph
