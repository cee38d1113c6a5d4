#pragma once

#include <cstddef>
#include <vector>

#include "layerpress/graph/graph.h"

namespace layerpress::graph {

/// A piece of a list of blocks, as a picture shows it: one block in full, or blocks that need not be shown because they
/// are alike others that are.
struct Folded {
  std::size_t first = 0;   ///< index of the first block
  std::size_t count = 1;   ///< how many blocks
  std::size_t period = 0;  ///< 0: one block, in full; else the blocks are, `period` at a time, as those from `like` on
  std::size_t like = 0;
};

/// Finds what repeats in a list of blocks (subgraphs; modules beside each other), in order, none left out.
///
/// Blocks are alike when they have the same operations in the same order with the same attributes (weights count by which
/// operations share them, not by name; which expert a node serves does not count) and the same wiring inside. A run of
/// blocks repeats when, besides, what each reads from outside is the same value for all, or comes from the same place in
/// the repetition before. Blocks of fewer than `least_nodes` nodes are always shown.
std::vector<Folded> fold(const Graph& graph, const std::vector<std::vector<NodeId>>& blocks, std::size_t least_nodes);

}  // namespace layerpress::graph
