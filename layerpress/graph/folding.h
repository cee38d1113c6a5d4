#pragma once

#include <cstddef>
#include <vector>

#include "layerpress/graph/graph.h"

namespace layerpress::graph {

/// A part of a list of blocks, as a picture shows it: one block in full, or several blocks that are hidden because they
/// repeat shown ones.
struct Folded {
  std::size_t first = 0;   ///< index of the first block
  std::size_t count = 1;   ///< number of blocks
  std::size_t period = 0;  ///< 0: one block, in full; otherwise each `period` blocks repeat those from `like` on
  std::size_t like = 0;
};

/// Finds repetitions in a list of blocks (subgraphs, or parallel modules). The result covers all blocks, in order.
///
/// Two blocks are alike if they have the same operations in the same order, with the same attributes and the same
/// internal wiring. Names of weights do not count, only which operations share a weight; nor does the index of an
/// expert. A run of blocks repeats if, in addition, each outside value read is the same in all repetitions or comes
/// from the same position in the previous repetition. Blocks of fewer than `least_nodes` nodes are always shown.
std::vector<Folded> fold(const Graph& graph, const std::vector<std::vector<NodeId>>& blocks, std::size_t least_nodes);

}  // namespace layerpress::graph
