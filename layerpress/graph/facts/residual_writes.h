#pragma once

#include <map>
#include <string>

#include "layerpress/graph/graph.h"

namespace layerpress::graph {

/// A linear that writes into the residual stream: the stream after it is stream + factor * linear(x).
struct ResidualWrite {
  NodeId linear = -1;
  std::string bias;       ///< the linear's bias, or ""
  std::int64_t rows = 0;  ///< rows of the linear's weight
  ValueId stream = -1;    ///< the stream before it
  ValueId output = -1;    ///< the linear's output, bias included
  double factor = 1;      ///< factor of a Scale node between the linear and the sum
};

/// The linears that write into the residual stream, by their input. No other node reads that input or the linear's
/// output, and the input is computed from the stream, so the stream is available when the input is.
std::map<ValueId, ResidualWrite> residual_writes(const Graph& graph);

}  // namespace layerpress::graph
