#include "layerpress/runtime/reference_stream.h"

#include <algorithm>
#include <set>

namespace layerpress::runtime {

ReferenceStream::ReferenceStream(const graph::Graph& graph, const Assignments& assignments)
    : graph_(graph), count_(static_cast<graph::ValueId>(graph.values.size())), differs_(graph.values.size(), false) {
  std::set<std::string> compressed;
  for (const auto& [node, assignment] : assignments)
    compressed.insert(std::get<graph::Linear>(graph.nodes[node].operation).weight);
  for (const graph::Node& node : graph.nodes) {
    bool differs = false;
    for (const graph::ValueId input : node.inputs) differs = differs || differs_[input];
    for (const graph::WeightUse& use : graph::weights_of(node.operation))
      differs = differs || compressed.count(use.name) != 0;
    differs_[node.output] = differs;
  }
}

graph::Stage ReferenceStream::stage(const graph::Stage& stage) const {
  graph::Stage own;
  const auto those_that_differ = [&](const std::vector<graph::ValueId>& values) {
    std::vector<graph::ValueId> found;
    std::copy_if(values.begin(), values.end(), std::back_inserter(found), [&](auto value) { return differs(value); });
    return found;
  };
  own.wanted = those_that_differ(stage.wanted);
  own.keeps = those_that_differ(stage.keeps);
  // Values that do not differ are in the store when the compressed model has passed the stage, if they were kept.
  std::set<graph::ValueId> available(stage.inputs.begin(), stage.inputs.end());
  for (const graph::ValueId value : stage.keeps)
    if (!differs(value)) available.insert(value);
  std::set<graph::ValueId> needed(own.wanted.begin(), own.wanted.end());
  needed.insert(own.keeps.begin(), own.keeps.end());
  for (auto n = stage.nodes.rbegin(); n != stage.nodes.rend(); ++n) {
    const graph::Node& node = graph_.nodes[*n];
    if (needed.count(node.output) == 0 || available.count(node.output) != 0) continue;
    own.nodes.insert(own.nodes.begin(), *n);
    needed.insert(node.inputs.begin(), node.inputs.end());
  }
  for (const graph::ValueId value : available)
    if (needed.count(value) != 0) own.inputs.push_back(value);
  return own;
}

bool wants_reference(const Assignments& assignments) {
  return std::any_of(assignments.begin(), assignments.end(),
                     [](const auto& entry) { return entry.second.modifier->statistics_wanted().cross; });
}

}  // namespace layerpress::runtime
