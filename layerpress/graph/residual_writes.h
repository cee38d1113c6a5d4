#pragma once

#include <map>

#include "layerpress/graph/graph.h"

namespace layerpress::graph {

/// A linear that writes into the residual stream: the stream behind it is stream + factor * linear(x).
struct ResidualWrite {
  NodeId linear = -1;
  ValueId stream = -1;  ///< before it
  double factor = 1;    ///< of a Scale node between the linear and the sum
};

/// The linears that write into the residual stream, by the value that they read: nothing else reads that value or what the
/// linear gives, and the value is made from the stream, so that the stream is there when the value is.
std::map<ValueId, ResidualWrite> residual_writes(const Graph& graph);

}  // namespace layerpress::graph
