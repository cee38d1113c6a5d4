#pragma once

#include <functional>
#include <string>
#include <vector>

#include "layerpress/graph/graph.h"

namespace layerpress::graph {

/// A run of nodes that is onloaded as one.
struct Subgraph {
  std::string name;           ///< the first sequential target in it; "head" and "tail" around the targets
  std::vector<NodeId> nodes;  ///< in the graph's order
};

/// Cuts the graph at the modules for which `is_target` holds into disjoint subgraphs that cover all nodes in order:
/// nodes before the first target ("head"), then `targets_per_subgraph` targets each, nodes between two targets going
/// with the earlier one, then the nodes behind the last target ("tail"). A target inside a target does not count.
/// Without any target there is one subgraph, "model".
std::vector<Subgraph> partition(const Graph& graph, const std::function<bool(const Module&)>& is_target,
                                int targets_per_subgraph = 1);

/// Which values enter, leave and die with a subgraph.
struct Liveness {
  std::vector<ValueId> inputs;   ///< produced earlier, read here
  std::vector<ValueId> outputs;  ///< produced here, read later (or the graph's output)
  std::vector<ValueId> freed;    ///< read or produced here, needed nowhere later
};

/// One entry per subgraph. Every value is freed exactly once, except the graph's output, which is never freed.
std::vector<Liveness> liveness(const Graph& graph, const std::vector<Subgraph>& subgraphs);

/// All linears of a subgraph that read one value: they share statistics and factorization.
struct LinearGroup {
  ValueId input = -1;
  std::vector<NodeId> linears;
};

/// Groups the subgraph's linears for which `wanted` holds, in the order in which their inputs are produced.
std::vector<LinearGroup> linear_groups(const Graph& graph, const Subgraph& subgraph,
                                       const std::function<bool(const Node&)>& wanted);

/// For each node, whether one of `wanted` depends on it, when the values in `available` need not be computed.
std::vector<bool> needed_nodes(const Graph& graph, const std::vector<ValueId>& wanted,
                               const std::vector<ValueId>& available = {});

}  // namespace layerpress::graph
