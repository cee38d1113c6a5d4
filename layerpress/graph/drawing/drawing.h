#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "layerpress/graph/partition.h"

namespace layerpress::graph {

struct DrawingOptions {
  std::string title;             ///< title of the picture; the first line of its caption
  bool full = false;             ///< show every node, even in repeated parts
  std::int64_t value_bytes = 2;  ///< bytes of one element of a value
  /// Stored bytes of the weights that the nodes read. If empty, the picture has no sizes of weights.
  std::function<std::uint64_t(const std::vector<NodeId>&)> weight_bytes;
};

/// Describes a picture of the graph in Graphviz's language. It has a box per subgraph, in order, with the subgraph's
/// nodes and their modules. Linears that read one value share a colour and a number. Values that cross a cut are shown
/// between the boxes, with shape and bytes. Repeated subgraphs and modules are shown once (see folding.h).
std::string to_dot(const Graph& graph, const std::vector<Subgraph>& subgraphs, const DrawingOptions& options);

}  // namespace layerpress::graph
