#include "layerpress/setup/untied_embeddings.h"

#include <set>
#include <variant>

namespace layerpress::setup {

rewrite::Changes untied_embeddings(const rewrite::Model& model, const compression::Assignments& assignments) {
  const graph::Graph& graph = model.traced.graph;
  std::set<std::string> compressed;
  for (const auto& [node, assignment] : assignments.linears)
    if (const auto* embedding = std::get_if<graph::Embedding>(&graph.nodes[node].operation))
      compressed.insert(embedding->weight);
  rewrite::Changes changes;
  for (graph::NodeId n = 0; n < static_cast<graph::NodeId>(graph.nodes.size()); ++n) {
    const auto* linear = std::get_if<graph::Linear>(&graph.nodes[n].operation);
    if (linear == nullptr || compressed.count(linear->weight) == 0) continue;
    changes.linears[n] = graph.module_name(graph.nodes[n]) + ".weight";
    changes.copies.push_back({changes.linears[n], linear->weight});
  }
  return changes;
}

}  // namespace layerpress::setup
