#include "layerpress/graph/stages.h"

namespace layerpress::graph {
namespace {

/// A set of values.
using Values = std::vector<bool>;

/// Walks back from `wanted` through the subgraph's nodes, stopping at values in `known`.
struct Closure {
  std::vector<NodeId> nodes;  // in order
  Values reached;             // every value looked at, those in `known` included

  Closure(const Graph& graph, const std::vector<NodeId>& candidates, const std::vector<ValueId>& wanted,
          const Values& known)
      : reached(graph.values.size(), false) {
    for (const ValueId value : wanted) reached[value] = true;
    for (auto n = candidates.rbegin(); n != candidates.rend(); ++n) {
      const Node& node = graph.nodes[*n];
      if (!reached[node.output] || known[node.output]) continue;
      nodes.insert(nodes.begin(), *n);
      for (const ValueId input : node.inputs) reached[input] = true;
    }
  }
};

/// What `stage` reads from the store.
std::vector<ValueId> inputs_of(const Graph& graph, const Stage& stage, const Values& known) {
  std::vector<ValueId> inputs;
  Values seen(graph.values.size(), false);
  const auto read = [&](ValueId value) {
    if (known[value] && !seen[value]) inputs.push_back(value);
    seen[value] = true;
  };
  for (const NodeId n : stage.nodes)
    for (const ValueId input : graph.nodes[n].inputs) read(input);
  if (stage.wanted >= 0) read(stage.wanted);
  return inputs;
}

}  // namespace

std::vector<Stage> split_stages(const Graph& graph, const Subgraph& subgraph, const std::vector<LinearGroup>& groups,
                                const std::vector<ValueId>& outputs, const std::vector<bool>& keep_after) {
  Values known(graph.values.size(), true);
  for (const NodeId n : subgraph.nodes) known[graph.nodes[n].output] = false;

  std::vector<Stage> stages;
  for (std::size_t g = 0; g <= groups.size(); ++g) {
    const bool last = g == groups.size();
    Stage stage;
    if (!last) stage.wanted = groups[g].input;
    stage.nodes = Closure(graph, subgraph.nodes, last ? outputs : std::vector{stage.wanted}, known).nodes;
    stage.inputs = inputs_of(graph, stage, known);

    if (last || keep_after.empty() || keep_after[g]) {
      // Kept is what the rest of the subgraph reads first on its way back.
      std::vector<ValueId> later = outputs;
      for (std::size_t h = g + 1; h < groups.size(); ++h) later.push_back(groups[h].input);
      Values computed = known;
      for (const NodeId n : stage.nodes) computed[graph.nodes[n].output] = true;
      const Values needed = Closure(graph, subgraph.nodes, later, computed).reached;
      for (const NodeId n : stage.nodes)
        if (needed[graph.nodes[n].output]) stage.keeps.push_back(graph.nodes[n].output);
      for (const ValueId value : stage.keeps) known[value] = true;
    }
    stages.push_back(std::move(stage));
  }
  return stages;
}

}  // namespace layerpress::graph
