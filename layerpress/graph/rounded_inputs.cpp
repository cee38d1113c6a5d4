#include "layerpress/graph/rounded_inputs.h"

#include <utility>
#include <variant>

namespace layerpress::graph {
namespace {

/// Copies a graph and inserts roundings.
class Rounding {
 public:
  Rounding(const Graph& graph, const RoundedInputsOf& rounded_inputs_of)
      : graph_(graph), rounded_inputs_of_(rounded_inputs_of) {}

  Graph apply() {
    result_.modules = graph_.modules;
    result_.rope_tables = graph_.rope_tables;
    result_.constants = graph_.constants;
    place_.assign(graph_.values.size(), -1);
    for (std::size_t v = 0; v < graph_.values.size() && graph_.is_input(static_cast<ValueId>(v)); ++v) {
      place_[v] = static_cast<ValueId>(v);
      result_.values.push_back(graph_.values[v]);
    }
    for (NodeId n = 0; n < static_cast<NodeId>(graph_.nodes.size()); ++n) {
      const Node& node = graph_.nodes[n];
      Node kept = node;
      for (ValueId& input : kept.inputs) input = place_[input];
      for (const auto& [index, rounding] : rounded_inputs_of_(n)) kept.inputs[index] = rounded(node, index, rounding);
      place_[node.output] = add(std::move(kept), graph_.values[node.output]);
    }
    result_.output = place_[graph_.output];
    lint(result_);
    return std::move(result_);
  }

 private:
  /// An input of `node` rounded: by an earlier node if one does the same.
  ValueId rounded(const Node& node, std::size_t index, const RoundValues& rounding) {
    const ValueId input = place_[node.inputs[index]];
    for (const NodeId earlier : roundings_) {
      const Node& own = result_.nodes[earlier];
      if (own.inputs[0] == input && std::get<RoundValues>(own.operation) == rounding) return own.output;
    }
    roundings_.push_back(static_cast<NodeId>(result_.nodes.size()));
    return add({rounding, {input}, -1, node.module}, graph_.values[node.inputs[index]]);
  }

  ValueId add(Node node, Value value) {
    value.producer = static_cast<NodeId>(result_.nodes.size());
    node.output = static_cast<ValueId>(result_.values.size());
    result_.values.push_back(value);
    result_.nodes.push_back(std::move(node));
    return static_cast<ValueId>(result_.values.size()) - 1;
  }

  const Graph& graph_;
  const RoundedInputsOf& rounded_inputs_of_;
  Graph result_;
  std::vector<ValueId> place_;  ///< of the old graph's values in the new one
  std::vector<NodeId> roundings_;
};

}  // namespace

Graph with_rounded_inputs(const Graph& graph, const RoundedInputsOf& rounded_inputs_of) {
  return Rounding(graph, rounded_inputs_of).apply();
}

}  // namespace layerpress::graph
