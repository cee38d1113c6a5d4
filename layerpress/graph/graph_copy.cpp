#include "layerpress/graph/graph_copy.h"

#include <utility>

namespace layerpress::graph {

GraphCopy::GraphCopy(const Graph& old) : old_(old), places_(old.values.size(), -1) {
  copy_.modules = old.modules;
  copy_.rope_tables = old.rope_tables;
  copy_.constants = old.constants;
  for (std::size_t v = 0; v < old.values.size() && old.is_input(static_cast<ValueId>(v)); ++v) {
    places_[v] = static_cast<ValueId>(v);
    copy_.values.push_back(old.values[v]);
  }
}

Node GraphCopy::with_placed_inputs(const Node& old) const {
  Node node = old;
  for (ValueId& input : node.inputs) input = place(input);
  return node;
}

ValueId GraphCopy::add(Node node, Value output) {
  const auto place = static_cast<ValueId>(copy_.values.size());
  output.producer = static_cast<NodeId>(copy_.nodes.size());
  node.output = place;
  copy_.values.push_back(output);
  copy_.nodes.push_back(std::move(node));
  return place;
}

Graph GraphCopy::finish() {
  copy_.output = place(old_.output);
  lint(copy_);
  return std::move(copy_);
}

}  // namespace layerpress::graph
