#include "layerpress/graph/stages.h"

#include <algorithm>
#include <map>
#include <utility>
#include <variant>

#include "layerpress/graph/weight_matrix.h"

namespace layerpress::graph {
namespace {

/// A set of values.
using Values = std::vector<bool>;

/// Walks back from `wanted` through the subgraph's nodes, stopping at values in `known`.
struct Closure {
  std::vector<NodeId> nodes;  // in order
  Values reached;             // every visited value, including those in `known`

  Closure(const Graph& graph, const std::vector<NodeId>& candidates, const std::vector<ValueId>& wanted,
          const Values& known)
      : reached(graph.values.size(), false) {
    for (const ValueId value : wanted) reached[value] = true;
    for (std::size_t i = candidates.size(); i-- > 0;) {
      const NodeId n = candidates[i];
      const Node& node = graph.nodes[n];
      if (!reached[node.output] || known[node.output]) continue;
      nodes.insert(nodes.begin(), n);
      for (const ValueId input : node.inputs) reached[input] = true;
    }
  }
};

/// The values that `stage` reads from the store.
std::vector<ValueId> inputs_of(const Graph& graph, const Stage& stage, const Values& known) {
  std::vector<ValueId> inputs;
  Values seen(graph.values.size(), false);
  const auto read = [&](ValueId value) {
    if (known[value] && !seen[value]) inputs.push_back(value);
    seen[value] = true;
  };
  for (const ValueId value : stage.wanted) read(value);  // in the order of `wanted`
  for (const NodeId n : stage.nodes)
    for (const ValueId input : graph.nodes[n].inputs) read(input);
  return inputs;
}

/// `wanted`, and the routed rows of the values that `nodes` compute, unless they are known.
std::vector<ValueId> with_routed_rows(const Graph& graph, const Subgraph& subgraph, const std::vector<NodeId>& nodes,
                                      std::vector<ValueId> wanted, const Values& known) {
  Values computed(graph.values.size(), false);
  for (const NodeId n : nodes) computed[graph.nodes[n].output] = true;
  for (const NodeId n : subgraph.nodes) {
    const Node& node = graph.nodes[n];
    if (std::holds_alternative<TakeRouted>(node.operation) && computed[node.inputs[0]] && !known[node.output])
      wanted.push_back(node.output);
  }
  return wanted;
}

/// Known values first, then the others in the order of production.
std::vector<ValueId> in_order(const Graph& graph, std::vector<ValueId> wanted, const Values& known) {
  const auto place = [&](ValueId value) { return known[value] ? -1 : graph.values[value].producer; };
  std::stable_sort(wanted.begin(), wanted.end(), [&](ValueId a, ValueId b) { return place(a) < place(b); });
  return wanted;
}

}  // namespace

bool repeats_cheaply(const Operation& operation) {
  return std::holds_alternative<SelectTokens>(operation) || std::holds_alternative<RmsNorm>(operation) ||
         std::holds_alternative<LayerNorm>(operation);
}

std::vector<Stage> split_stages(const Graph& graph, const Subgraph& subgraph,
                                const std::vector<std::vector<ValueId>>& wanted, const std::vector<ValueId>& outputs,
                                const std::vector<bool>& keep_after,
                                const std::vector<std::vector<ValueId>>& stale_after) {
  Values known(graph.values.size(), true);
  for (const NodeId n : subgraph.nodes) known[graph.nodes[n].output] = false;

  std::vector<Stage> stages;
  for (std::size_t s = 0; s <= wanted.size(); ++s) {
    const bool last = s == wanted.size(), keeps = last || keep_after.empty() || keep_after[s];
    Stage stage;
    if (!last) stage.wanted = in_order(graph, wanted[s], known);
    const auto run_for = [&](const std::vector<ValueId>& values) {
      stage.nodes = Closure(graph, subgraph.nodes, values, known).nodes;
    };
    run_for(last ? outputs : stage.wanted);
    if (!last && keeps) {
      const std::vector<ValueId> values = with_routed_rows(graph, subgraph, stage.nodes, stage.wanted, known);
      if (values.size() > stage.wanted.size()) run_for(values);
    }
    stage.inputs = inputs_of(graph, stage, known);

    if (keeps) {
      // Keep the values at which the walk back from the later needs stops.
      std::vector<ValueId> later = outputs;
      for (std::size_t t = s + 1; t < wanted.size(); ++t) later.insert(later.end(), wanted[t].begin(), wanted[t].end());
      Values computed = known;
      for (const NodeId n : stage.nodes)
        computed[graph.nodes[n].output] = last || !repeats_cheaply(graph.nodes[n].operation);
      for (std::size_t t = s; t < stale_after.size(); ++t)
        for (const ValueId value : stale_after[t]) computed[value] = known[value];
      const Values needed = Closure(graph, subgraph.nodes, later, computed).reached;
      for (const NodeId n : stage.nodes)
        if (needed[graph.nodes[n].output] && computed[graph.nodes[n].output])
          stage.keeps.push_back(graph.nodes[n].output);
      for (const ValueId value : stage.keeps) known[value] = true;
    }
    stages.push_back(std::move(stage));
  }
  return stages;
}

std::map<ValueId, std::size_t> compression_levels(const Graph& graph, const Subgraph& subgraph,
                                                  const std::vector<LinearGroup>& groups) {
  std::vector<bool> compressed(graph.nodes.size(), false);
  for (const LinearGroup& group : groups)
    for (const NodeId n : group.linears) compressed[n] = true;
  std::map<ValueId, std::size_t> level;  // of values produced in this subgraph; all others have level 0
  const auto level_of = [&](ValueId value) {
    const auto found = level.find(value);
    return found == level.end() ? 0 : found->second;
  };
  std::map<std::string, std::size_t> level_of_weight;  // the level at which it is compressed
  for (const NodeId n : subgraph.nodes) {
    const Node& node = graph.nodes[n];
    std::size_t own = 0;
    for (const ValueId input : node.inputs) own = std::max(own, level_of(input));
    if (compressed[n])
      level_of_weight[weight_matrix(node.operation).value().weight] = ++own;
    else
      for (const WeightUse& use : weights_of(node.operation))
        if (const auto found = level_of_weight.find(use.name); found != level_of_weight.end())
          own = std::max(own, found->second);
    level[node.output] = own;
  }
  return level;
}

}  // namespace layerpress::graph
