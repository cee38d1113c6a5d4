#pragma once

#include <vector>

#include "layerpress/graph/graph.h"

namespace layerpress::graph {

/// Nodes in a module of the same parent, or one node of the parent itself.
struct Part {
  ModuleId module = -1;  ///< -1: a node of the parent itself
  std::vector<NodeId> nodes;
};

/// Splits nodes, which are all in module `around` (-1: the one around all), by the modules right below it, in order.
std::vector<Part> parts_of(const Graph& graph, const std::vector<NodeId>& nodes, ModuleId around);

}  // namespace layerpress::graph
