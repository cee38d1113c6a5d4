#include "layerpress/graph/facts/expert_inputs.h"

#include <variant>

#include "layerpress/graph/graph_copy.h"

namespace layerpress::graph {

Graph without_selection(const Graph& graph) {
  GraphCopy copy(graph);
  for (const Node& node : graph.nodes) {
    if (std::holds_alternative<SelectTokens>(node.operation)) {
      copy.stand_for(node.output, copy.place(node.inputs[0]));
      continue;
    }
    Value value = graph.values[node.output];
    if (value.rows == Rows::kSelected && !std::holds_alternative<TakeRouted>(node.operation))
      value.rows = Rows::kTokens;
    copy.stand_for(node.output, copy.add(copy.with_placed_inputs(node), value));
  }
  return copy.finish();
}

namespace {

/// Adds the linears that only `routers` read, through whatever lies between.
void add_earlier_linears(const Graph& graph, const std::set<NodeId>& routers, std::set<NodeId>& found) {
  const auto count = static_cast<NodeId>(graph.nodes.size());
  std::vector<bool> is_read(graph.values.size()), is_read_otherwise(graph.values.size());
  is_read_otherwise[graph.output] = true;
  for (NodeId n = count - 1; n >= 0; --n) {
    const Node& node = graph.nodes[n];
    const bool only_routes = routers.count(n) != 0 || (is_read[node.output] && !is_read_otherwise[node.output]);
    if (only_routes && std::holds_alternative<Linear>(node.operation)) found.insert(n);
    for (const ValueId value : node.inputs) (only_routes ? is_read : is_read_otherwise)[value] = true;
  }
}

}  // namespace

std::set<NodeId> weighing_linears(const Graph& graph) {
  std::set<NodeId> found, routers;
  const auto add = [&](ValueId logits) {
    const NodeId producer = graph.values[logits].producer;
    if (producer >= 0 && std::holds_alternative<Linear>(graph.nodes[producer].operation)) routers.insert(producer);
  };
  for (NodeId n = 0; n < static_cast<NodeId>(graph.nodes.size()); ++n) {
    const Node& node = graph.nodes[n];
    if (const auto* linear = std::get_if<Linear>(&node.operation)) {
      if (graph.modules[node.module].class_name == kRouterClass) routers.insert(n);
      if (linear->out_features == 1) found.insert(n);
    }
    if (std::holds_alternative<Route>(node.operation)) add(node.inputs[0]);
    if (std::holds_alternative<SelectTokens>(node.operation) || std::holds_alternative<TakeRouted>(node.operation))
      add(node.inputs[1]);
  }
  add_earlier_linears(graph, routers, found);
  return found;
}

const Node& selection_of(const Graph& graph, ValueId value) {
  const Node* node = &graph.nodes.at(graph.values.at(value).producer);
  while (!std::holds_alternative<SelectTokens>(node->operation) && !std::holds_alternative<TakeRouted>(node->operation))
    node = &graph.nodes.at(graph.values.at(node->inputs.at(0)).producer);
  return *node;
}

}  // namespace layerpress::graph
