#pragma once

#include <string>
#include <utility>
#include <vector>

#include "layerpress/graph/graph.h"

namespace layerpress::graph {

/// Heads of values that a linear makes, an attention mixes and linears read. If the rows of each head are turned by one orthogonal
/// matrix, and its columns in the readers are turned back, nothing else in the model changes.
struct ValueHeads {
  struct Rows {
    std::int64_t first = 0, count = 0;  ///< a multiple of the head's size
  };
  NodeId attention = -1;
  NodeId linear = -1;             ///< that makes the values
  std::vector<Rows> rows{};       ///< of its weight, and elements of its bias
  std::vector<NodeId> readers{};  ///< linears
  std::int64_t head_dim = 0;
};

/// Those of a graph, and the attentions whose values cannot be turned, with the reason.
struct AllValueHeads {
  std::vector<ValueHeads> heads;
  std::vector<std::pair<NodeId, std::string>> others;
};

AllValueHeads value_heads(const Graph& graph);

}  // namespace layerpress::graph
