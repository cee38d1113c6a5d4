#include "layerpress/graph/facts/residual_writes.h"

#include <set>
#include <variant>

namespace layerpress::graph {
namespace {

/// Whether `value` is computed from `source`.
bool depends_on(const Graph& graph, ValueId value, ValueId source) {
  const NodeId earliest = graph.values[source].producer;
  std::set<ValueId> seen = {value};
  std::vector<ValueId> open = {value};
  while (!open.empty()) {
    const ValueId next = open.back();
    open.pop_back();
    if (next == source) return true;
    if (graph.values[next].producer <= earliest) continue;  // nodes are in topological order
    for (const ValueId input : graph.nodes[graph.values[next].producer].inputs)
      if (seen.insert(input).second) open.push_back(input);
  }
  return false;
}

class WriteFinder {
 public:
  explicit WriteFinder(const Graph& graph) : graph_(graph), consumers_(graph.consumers()) {}

  /// The stream into which the linear `n` writes; a write without a stream if there is none.
  ResidualWrite find(NodeId n) const {
    const Node& linear = graph_.nodes[n];
    const auto& operation = std::get<Linear>(linear.operation);
    ResidualWrite write{n, operation.bias, operation.out_features, -1, linear.output};
    const Node* reader = only_reader(linear.output);
    ValueId written = linear.output;
    if (const auto* scale = reader == nullptr ? nullptr : std::get_if<Scale>(&reader->operation)) {
      write.factor = scale->factor;
      written = reader->output;
      reader = only_reader(written);
    }
    if (reader == nullptr || write.factor == 0 || !std::holds_alternative<Add>(reader->operation)) return write;
    const ValueId other = reader->inputs[reader->inputs[0] == written ? 1 : 0];
    const ValueId input = linear.inputs[0];
    const bool fits =
        other != written && !graph_.is_input(other) && graph_.values[other].rows == graph_.values[input].rows;
    if (fits && only_reader(input) == &linear && depends_on(graph_, input, other)) write.stream = other;
    return write;
  }

 private:
  /// Null if none or several nodes read the value.
  const Node* only_reader(ValueId value) const {
    const std::vector<NodeId>& readers = consumers_[value];
    return readers.size() == 1 ? &graph_.nodes[readers[0]] : nullptr;
  }

  const Graph& graph_;
  std::vector<std::vector<NodeId>> consumers_;
};

}  // namespace

std::map<ValueId, ResidualWrite> residual_writes(const Graph& graph) {
  const WriteFinder finder(graph);
  std::map<ValueId, ResidualWrite> writes;
  for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
    if (!std::holds_alternative<Linear>(graph.nodes[n].operation)) continue;
    const ResidualWrite write = finder.find(static_cast<NodeId>(n));
    if (write.stream >= 0) writes.emplace(graph.nodes[n].inputs[0], write);
  }
  return writes;
}

}  // namespace layerpress::graph
