#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "layerpress/graph/graph.h"

namespace layerpress::graph {

/// An input of a node, by its index, and how it is rounded.
struct RoundedInput {
  std::size_t index = 0;
  RoundValues rounding;
};

/// The inputs of node `n` that are to be rounded.
using RoundedInputsOf = std::function<std::vector<RoundedInput>(NodeId n)>;

/// The graph with a node before each input that is to be rounded. Inputs that round one value in the same way share a node, which
/// belongs to the module of the first reader.
Graph with_rounded_inputs(const Graph& graph, const RoundedInputsOf& rounded_inputs_of);

}  // namespace layerpress::graph
