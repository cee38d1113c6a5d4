#pragma once

#include "layerpress/graph/graph.h"

namespace layerpress::graph {

/// The graph with every expert calibrated on all tokens: the nodes that select tokens are removed, so that the gate and
/// up projections of all experts of a layer read one value. The model's output does not change.
Graph without_selection(const Graph& graph);

/// The node that selected the rows of `value`: a SelectTokens or a TakeRouted. REQUIRES: `value` has selected rows.
const Node& selection_of(const Graph& graph, ValueId value);

}  // namespace layerpress::graph
