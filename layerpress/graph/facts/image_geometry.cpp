#include "layerpress/graph/facts/image_geometry.h"

#include <algorithm>
#include <variant>

namespace layerpress::graph {

std::optional<ImageGeometry> image_geometry(const Graph& graph) {
  for (const Node& node : graph.nodes)
    if (const auto* embedding = std::get_if<PatchEmbedding>(&node.operation)) return *embedding;
  return std::nullopt;
}

const Node* merging_node(const Graph& graph) {
  for (const Node& node : graph.nodes)
    if (std::holds_alternative<MergeImages>(node.operation)) return &node;
  return nullptr;
}

std::int64_t layers_adding_images(const Graph& graph) {
  std::int64_t layers = 0;
  for (const Node& node : graph.nodes)
    if (const auto* adding = std::get_if<AddImages>(&node.operation)) layers = std::max(layers, adding->layer + 1);
  return layers;
}

bool has_mutual_attention(const Graph& graph) {
  return std::any_of(graph.nodes.begin(), graph.nodes.end(), [](const Node& node) {
    const auto* attention = std::get_if<Attention>(&node.operation);
    return attention != nullptr && attention->mutual;
  });
}

}  // namespace layerpress::graph
