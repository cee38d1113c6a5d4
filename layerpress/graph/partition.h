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

/// Nodes to run before something happens to a value: all that are still missing for it.
struct Stage {
  std::vector<NodeId> nodes;    ///< in order
  std::vector<ValueId> inputs;  ///< values that the nodes read and do not produce
  std::vector<ValueId> keeps;   ///< values produced here that later stages or subgraphs read
};

/// Splits a subgraph into one stage per group (everything that the group's input still needs) and a last stage with
/// what remains for `outputs`; nodes that nothing needs are in no stage. `outputs` are the subgraph's live outputs.
std::vector<Stage> split_stages(const Graph& graph, const Subgraph& subgraph, const std::vector<LinearGroup>& groups,
                                const std::vector<ValueId>& outputs);

/// For each node, whether one of `wanted` depends on it.
std::vector<bool> needed_nodes(const Graph& graph, const std::vector<ValueId>& wanted);

}  // namespace layerpress::graph
