#pragma once

#include <set>

#include "layerpress/graph/graph.h"

namespace layerpress::graph {

/// The graph with every expert calibrated on all tokens: the nodes that select tokens are removed, so that the gate and
/// up projections of all experts of a layer read one value. The model's output does not change.
Graph without_selection(const Graph& graph);

/// The class of an imported graph's routers, whatever class the model uses for them.
inline constexpr const char* kRouterClass = "Router";

/// Linears that only weigh what other modules compute: routers, whose outputs choose experts, linears before them that nothing
/// else reads, and gates of one feature.
std::set<NodeId> weighing_linears(const Graph& graph);

/// The node that selected the rows of `value`: a SelectTokens or a TakeRouted. REQUIRES: `value` has selected rows.
const Node& selection_of(const Graph& graph, ValueId value);

}  // namespace layerpress::graph
