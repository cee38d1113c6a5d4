#pragma once

#include <cstdint>
#include <optional>

#include "layerpress/graph/graph.h"

namespace layerpress::graph {

/// The geometry of the graph's patch embedding, or nothing for a model without images.
std::optional<ImageGeometry> image_geometry(const Graph& graph);

/// The node that takes what a vision part outside the graph makes of images, or null.
const Node* merging_node(const Graph& graph);

/// How many layers add to the hidden state what that vision part makes.
std::int64_t layers_adding_images(const Graph& graph);

/// Whether tokens of an image attend to later ones of it.
bool has_mutual_attention(const Graph& graph);

}  // namespace layerpress::graph
