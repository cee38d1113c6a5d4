#include "layerpress/graph/facts/original_stream.h"

#include <algorithm>
#include <iterator>
#include <ranges>
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

Stage OriginalStream::stage(const Stage& stage) const {
  Stage own;
  const auto those_that_differ = [&](const std::vector<ValueId>& values) {
    std::vector<ValueId> found;
    std::copy_if(values.begin(), values.end(), std::back_inserter(found), [&](auto value) { return differs(value); });
    return found;
  };
  own.wanted = those_that_differ(stage.wanted);
  own.keeps = those_that_differ(stage.keeps);
  // Values that do not differ are in the store after the compressed model's stage, if they were kept.
  std::set<ValueId> available(stage.inputs.begin(), stage.inputs.end());
  for (const ValueId value : stage.keeps)
    if (!differs(value)) available.insert(value);
  std::set<ValueId> needed(own.wanted.begin(), own.wanted.end());
  needed.insert(own.keeps.begin(), own.keeps.end());
  for (const int n : std::ranges::reverse_view(stage.nodes)) {
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
