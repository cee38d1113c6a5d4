#include "layerpress/graph/facts/rounded_inputs.h"

#include <map>
#include <utility>

#include "layerpress/graph/graph_copy.h"

namespace layerpress::graph {

Graph with_rounded_inputs(const Graph& graph, const RoundedInputsOf& rounded_inputs_of) {
  GraphCopy copy(graph);
  std::map<ValueId, std::vector<std::pair<RoundValues, ValueId>>> known;  // by the value that is rounded
  const auto rounded = [&](ValueId input, const RoundValues& rounding, const Node& reader) {
    auto& roundings = known[input];
    for (const auto& [own, output] : roundings)
      if (own == rounding) return output;
    const ValueId output = copy.add({rounding, {copy.place(input)}, -1, reader.module}, graph.values[input]);
    roundings.emplace_back(rounding, output);
    return output;
  };
  for (NodeId n = 0; n < static_cast<NodeId>(graph.nodes.size()); ++n) {
    const Node& node = graph.nodes[n];
    Node kept = copy.with_placed_inputs(node);
    for (const auto& [index, rounding] : rounded_inputs_of(n))
      kept.inputs[index] = rounded(node.inputs[index], rounding, node);
    copy.stand_for(node.output, copy.add(std::move(kept), graph.values[node.output]));
  }
  return copy.finish();
}

}  // namespace layerpress::graph
