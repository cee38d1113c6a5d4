#include "layerpress/graph/operations/experts.h"

#include <variant>

#include "layerpress/graph/graph.h"

namespace layerpress::graph {

void Expert::check(const NodeCheck& node) const {
  node.require(node.inputs() == 2 || node.inputs() == 3, "number of inputs");
  node.require(node.features(0) == intermediate && node.features(1) == experts, "features of the inputs");
  node.require(expert >= 0 && expert < experts, "the expert exists");
  const NodeId producer = node.graph().values[node.node().inputs[0]].producer;
  const auto* taken = producer < 0 ? nullptr : std::get_if<TakeRouted>(&node.graph().nodes[producer].operation);
  node.require(taken != nullptr && taken->expert == expert, "the input has the rows that are routed to the expert");
  if (node.inputs() == 3) node.require(node.features(2) == features, "features of the sum");
  node.output(features, Rows::kTokens);
}

}  // namespace layerpress::graph
