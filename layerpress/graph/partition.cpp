#include "layerpress/graph/partition.h"

#include <algorithm>

#include "layerpress/graph/weight_matrix.h"

namespace layerpress::graph {
namespace {

/// For each module the outermost target that contains it (possibly itself), or -1.
std::vector<ModuleId> enclosing_targets(const Graph& graph, const std::function<bool(const Module&)>& is_target) {
  std::vector<ModuleId> target(graph.modules.size(), -1);
  for (std::size_t m = 0; m < graph.modules.size(); ++m) {
    const Module& module = graph.modules[m];
    if (module.parent >= 0) target[m] = target[module.parent];
    if (target[m] < 0 && is_target(module)) target[m] = static_cast<ModuleId>(m);
  }
  return target;
}

}  // namespace

std::vector<Subgraph> partition(const Graph& graph, const std::function<bool(const Module&)>& is_target,
                                int targets_per_subgraph) {
  const std::vector<ModuleId> target_of = enclosing_targets(graph, is_target);
  NodeId last_in_target = -1;
  for (std::size_t n = 0; n < graph.nodes.size(); ++n)
    if (target_of[graph.nodes[n].module] >= 0) last_in_target = static_cast<NodeId>(n);

  std::vector<Subgraph> subgraphs;
  subgraphs.push_back({last_in_target < 0 ? "model" : "head", {}});
  ModuleId current = -1;
  int targets_in_subgraph = targets_per_subgraph;  // so that the first target opens a subgraph
  for (NodeId n = 0; n < static_cast<NodeId>(graph.nodes.size()); ++n) {
    const ModuleId target = target_of[graph.nodes[n].module];
    if (target >= 0 && target != current) {
      current = target;
      if (targets_in_subgraph >= targets_per_subgraph) {
        subgraphs.push_back({graph.modules[target].name, {}, true});
        targets_in_subgraph = 0;
      }
      ++targets_in_subgraph;
    }
    if (last_in_target >= 0 && n == last_in_target + 1) subgraphs.push_back({"tail", {}});
    subgraphs.back().nodes.push_back(n);
  }
  std::erase_if(subgraphs, [](const Subgraph& subgraph) { return subgraph.nodes.empty(); });
  return subgraphs;
}

std::vector<Liveness> liveness(const Graph& graph, const std::vector<Subgraph>& subgraphs) {
  std::vector<int> produced_in(graph.values.size(), -1);
  std::vector<int> last_read_in(graph.values.size(), -1);
  for (std::size_t s = 0; s < subgraphs.size(); ++s)
    for (const NodeId n : subgraphs[s].nodes) {
      produced_in[graph.nodes[n].output] = static_cast<int>(s);
      for (const ValueId input : graph.nodes[n].inputs) last_read_in[input] = static_cast<int>(s);
    }
  std::vector<Liveness> live(subgraphs.size());
  for (std::size_t s = 0; s < subgraphs.size(); ++s) {
    for (const NodeId n : subgraphs[s].nodes)
      for (const ValueId input : graph.nodes[n].inputs)
        if (produced_in[input] < static_cast<int>(s) &&
            std::find(live[s].inputs.begin(), live[s].inputs.end(), input) == live[s].inputs.end())
          live[s].inputs.push_back(input);
  }
  for (ValueId value = 0; value < static_cast<ValueId>(graph.values.size()); ++value) {
    const int produced = produced_in[value];
    const bool is_output = value == graph.output;
    if (produced >= 0 && (is_output || last_read_in[value] > produced)) live[produced].outputs.push_back(value);
    const int dies_in = std::max(produced, last_read_in[value]);
    if (!is_output && dies_in >= 0) live[dies_in].freed.push_back(value);
  }
  return live;
}

std::vector<LinearGroup> linear_groups(const Graph& graph, const Subgraph& subgraph,
                                       const std::function<bool(const Node&)>& wanted) {
  std::vector<LinearGroup> groups;
  for (const NodeId n : subgraph.nodes) {
    const Node& node = graph.nodes[n];
    if (!weight_matrix(node.operation) || !wanted(node)) continue;
    const auto same_input = [&](const LinearGroup& group) { return group.input == node.inputs[0]; };
    const auto found = std::find_if(groups.begin(), groups.end(), same_input);
    if (found == groups.end())
      groups.push_back({node.inputs[0], {n}});
    else
      found->linears.push_back(n);
  }
  std::stable_sort(groups.begin(), groups.end(), [&](const LinearGroup& a, const LinearGroup& b) {
    return graph.values[a.input].producer < graph.values[b.input].producer;
  });
  return groups;
}

std::vector<bool> needed_nodes(const Graph& graph, const std::vector<ValueId>& wanted,
                               const std::vector<ValueId>& available) {
  std::vector<bool> value_needed(graph.values.size(), false), is_available(graph.values.size(), false);
  for (const ValueId value : wanted) value_needed[value] = true;
  for (const ValueId value : available) is_available[value] = true;
  std::vector<bool> needed(graph.nodes.size(), false);
  for (auto n = static_cast<NodeId>(graph.nodes.size()) - 1; n >= 0; --n) {
    const ValueId output = graph.nodes[n].output;
    if (!value_needed[output] || is_available[output]) continue;
    needed[n] = true;
    for (const ValueId input : graph.nodes[n].inputs) value_needed[input] = true;
  }
  return needed;
}

}  // namespace layerpress::graph
