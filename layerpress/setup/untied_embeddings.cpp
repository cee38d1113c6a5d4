#include "layerpress/setup/untied_embeddings.h"

#include <set>
#include <utility>

#include "layerpress/graph/weight_matrix.h"

namespace layerpress::setup {

void untie_compressed_embeddings(OpenedModel& model, const compression::Assignments& assignments) {
  graph::Graph& graph = model.traced.graph;
  std::set<std::string> compressed;
  for (const auto& [node, assignment] : assignments.linears)
    if (const auto* embedding = std::get_if<graph::Embedding>(&graph.nodes[node].operation))
      compressed.insert(embedding->weight);
  for (graph::Node& node : graph.nodes) {
    auto* linear = std::get_if<graph::Linear>(&node.operation);
    if (linear == nullptr || compressed.count(linear->weight) == 0) continue;
    const std::string own = graph.module_name(node) + ".weight";
    model.checkpoint = model.checkpoint->with_copy(own, linear->weight);
    if (const auto quantized = model.quantized.find(linear->weight); quantized != model.quantized.end()) {
      source::StoredWeight copy = quantized->second;
      copy.name = own;
      model.quantized.insert_or_assign(own, std::move(copy));
    }
    linear->weight = own;
  }
}

}  // namespace layerpress::setup
