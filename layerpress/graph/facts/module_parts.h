#pragma once

#include <vector>

#include "layerpress/graph/graph.h"

namespace layerpress::graph {

/// Nodes in one child module of a parent, or one node of the parent itself.
struct Part {
  ModuleId module = -1;  ///< -1: a node of the parent itself
  std::vector<NodeId> nodes;
};

/// Splits nodes of module `around` (-1: top level) by its child modules, in order.
std::vector<Part> parts_of(const Graph& graph, const std::vector<NodeId>& nodes, ModuleId around);

}  // namespace layerpress::graph
