#pragma once

#include <functional>
#include <string>
#include <vector>

#include "layerpress/graph/graph.h"

namespace layerpress::graph {

/// Consecutive nodes that are onloaded together.
struct Subgraph {
  std::string name;           ///< its first sequential target; "head" before and "tail" after all targets
  std::vector<NodeId> nodes;  ///< in the graph's order
  bool holds_target = false;  ///< whether it begins with a sequential target
};

/// Cuts the graph at the modules for which `is_target` holds into disjoint subgraphs that cover all nodes in order: the
/// nodes before the first target ("head"); subgraphs with `targets_per_subgraph` targets each; the nodes after the last
/// target ("tail"). Nodes between two targets belong to the subgraph of the earlier one. A target inside a target does
/// not count. Without targets there is one subgraph, "model".
std::vector<Subgraph> partition(const Graph& graph, const std::function<bool(const Module&)>& is_target,
                                int targets_per_subgraph = 1);

/// The values that enter, leave and die with a subgraph.
struct Liveness {
  std::vector<ValueId> inputs;   ///< produced earlier, read here
  std::vector<ValueId> outputs;  ///< produced here, read later (or the graph's output)
  std::vector<ValueId> freed;    ///< read or produced here, needed nowhere later
};

/// One entry per subgraph. Every value is freed exactly once, except the graph's output, which is never freed.
std::vector<Liveness> liveness(const Graph& graph, const std::vector<Subgraph>& subgraphs);

/// All linears of a subgraph that read one value. They share statistics and factorization. Or embeddings of the same ids, which
/// have no statistics.
struct LinearGroup {
  ValueId input = -1;
  std::vector<NodeId> linears;
};

/// Groups the subgraph's linears and embeddings for which `wanted` holds, in the order of their inputs.
std::vector<LinearGroup> linear_groups(const Graph& graph, const Subgraph& subgraph,
                                       const std::function<bool(const Node&)>& wanted);

/// For each node, whether one of `wanted` depends on it, given that the values in `available` need no computation.
std::vector<bool> needed_nodes(const Graph& graph, const std::vector<ValueId>& wanted,
                               const std::vector<ValueId>& available = {});

}  // namespace layerpress::graph
