#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "layerpress/graph/partition.h"

namespace layerpress::graph {

struct DrawingOptions {
  std::string title;             ///< of the picture; the first line of its caption
  bool full = false;             ///< show every node, also of what repeats
  std::int64_t value_bytes = 2;  ///< of one element of a value
  /// Stored bytes of the weights that the nodes read. Empty: sizes of weights are left out.
  std::function<std::uint64_t(const std::vector<NodeId>&)> weight_bytes;
};

/// Describes a picture of the graph in Graphviz's language: a box per subgraph, in order, with its nodes and the modules
/// they are in; linears that read one value in one colour and with one number; values that cross from one subgraph to
/// another between the boxes, with shape and bytes. Subgraphs and modules that repeat are shown once (see folding.h).
std::string to_dot(const Graph& graph, const std::vector<Subgraph>& subgraphs, const DrawingOptions& options);

}  // namespace layerpress::graph
