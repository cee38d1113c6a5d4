#include "layerpress/graph/expert_inputs.h"

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

std::set<NodeId> weighing_linears(const Graph& graph) {
  std::set<NodeId> found;
  const auto add = [&](ValueId logits) {
    const NodeId producer = graph.values[logits].producer;
    if (producer >= 0 && std::holds_alternative<Linear>(graph.nodes[producer].operation)) found.insert(producer);
  };
  for (NodeId n = 0; n < static_cast<NodeId>(graph.nodes.size()); ++n) {
    const Node& node = graph.nodes[n];
    const auto* linear = std::get_if<Linear>(&node.operation);
    const std::string& class_name = graph.modules[node.module].class_name;
    if (linear != nullptr && (linear->out_features == 1 || class_name == kRouterClass)) found.insert(n);
    if (std::holds_alternative<Route>(node.operation)) add(node.inputs[0]);
    if (std::holds_alternative<SelectTokens>(node.operation) || std::holds_alternative<TakeRouted>(node.operation))
      add(node.inputs[1]);
  }
  return found;
}

const Node& selection_of(const Graph& graph, ValueId value) {
  const Node* node = &graph.nodes.at(graph.values.at(value).producer);
  while (!std::holds_alternative<SelectTokens>(node->operation) && !std::holds_alternative<TakeRouted>(node->operation))
    node = &graph.nodes.at(graph.values.at(node->inputs.at(0)).producer);
  return *node;
}

}  // namespace layerpress::graph
