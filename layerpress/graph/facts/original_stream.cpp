#include "layerpress/graph/facts/original_stream.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <variant>

#include "layerpress/graph/weight_matrix.h"

namespace layerpress::graph {

OriginalStream::OriginalStream(const Graph& graph, const std::set<std::string>& changed)
    : graph_(graph), count_(static_cast<ValueId>(graph.values.size())), differs_(graph.values.size(), false) {
  for (const Node& node : graph.nodes) {
    bool differs = std::holds_alternative<RoundValues>(node.operation);
    for (const ValueId input : node.inputs) differs = differs || differs_[input];
    for (const WeightUse& use : weights_of(node.operation)) differs = differs || changed.count(use.name) != 0;
    differs_[node.output] = differs;
  }
}

Stage OriginalStream::stage(const Stage& stage, const std::vector<Ahead>& ahead,
                            const std::set<ValueId>& stored) const {
  Stage own;
  std::set<NodeId> nodes(stage.nodes.begin(), stage.nodes.end());
  const auto those_that_differ = [&](const std::vector<ValueId>& values) {
    std::vector<ValueId> found;
    std::copy_if(values.begin(), values.end(), std::back_inserter(found), [&](auto value) { return differs(value); });
    return found;
  };
  own.wanted = those_that_differ(stage.wanted);
  own.keeps = those_that_differ(stage.keeps);
  std::erase_if(own.keeps, [&](ValueId value) { return stored.contains(value); });
  for (const auto& [input, value] : ahead) {
    own.wanted.push_back(value);
    for (NodeId n = graph_.values[input].producer + 1; n <= graph_.values[value].producer; ++n) nodes.insert(n);
  }
  // Values that do not differ are in the store after the compressed model's stage, if they were kept.
  std::set<ValueId> available(stage.inputs.begin(), stage.inputs.end());
  for (const ValueId value : stage.keeps)
    if (!differs(value)) available.insert(value);
  available.insert(stored.begin(), stored.end());
  std::set<ValueId> needed(own.wanted.begin(), own.wanted.end());
  needed.insert(own.keeps.begin(), own.keeps.end());
  for (const NodeId n : std::vector<NodeId>(nodes.rbegin(), nodes.rend())) {
    const Node& node = graph_.nodes[n];
    if (needed.count(node.output) == 0 || available.count(node.output) != 0) continue;
    own.nodes.insert(own.nodes.begin(), n);
    needed.insert(node.inputs.begin(), node.inputs.end());
  }
  for (const ValueId value : available)
    if (needed.count(value) != 0) own.inputs.push_back(value);
  return own;
}

}  // namespace layerpress::graph
