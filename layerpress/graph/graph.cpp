#include "layerpress/graph/graph.h"

#include <cmath>

#include "layerpress/base/error.h"

namespace layerpress::graph {

std::vector<double> RopeTable::frequencies_for(std::int64_t length) const {
  if (original_length <= 0 || length <= original_length) return inverse_frequencies;
  if (!long_inverse_frequencies.empty()) return long_inverse_frequencies;
  if (ntk_factor <= 0) return inverse_frequencies;
  // Dynamic NTK: theta grows so that the longest position keeps the angle it had at the original length.
  const double dims = 2.0 * static_cast<double>(inverse_frequencies.size());
  const double ratio = static_cast<double>(length) / static_cast<double>(original_length);
  const double base = theta * std::pow(ntk_factor * ratio - (ntk_factor - 1), dims / (dims - 2));
  std::vector<double> frequencies(inverse_frequencies.size());
  for (std::size_t i = 0; i < frequencies.size(); ++i)
    frequencies[i] = std::pow(base, -2.0 * static_cast<double>(i) / dims);
  return frequencies;
}

std::vector<std::vector<NodeId>> Graph::consumers() const {
  std::vector<std::vector<NodeId>> readers(values.size());
  for (std::size_t n = 0; n < nodes.size(); ++n)
    for (const ValueId input : nodes[n].inputs) {
      auto& list = readers.at(input);
      if (list.empty() || list.back() != static_cast<NodeId>(n)) list.push_back(static_cast<NodeId>(n));
    }
  return readers;
}

namespace {

/// Checks one node's inputs against its operation.
class FeatureCheck {
 public:
  FeatureCheck(const Graph& graph, const Node& node) : graph_(graph), node_(node) {}

  void operator()(const Embedding& op) const { expect(1, {0}), output(op.features); }
  void operator()(const Linear& op) const { expect(1, {op.in_features}), output(op.out_features); }
  void operator()(const RmsNorm& op) const {
    expect(1, {});
    require(op.size > 0 && features(0) % op.size == 0, "normalized size divides the features");
    output(features(0));
  }
  void operator()(const Rotary& op) const {
    expect(1, {});
    require(op.head_dim > 0 && features(0) % op.head_dim == 0, "head_dim divides the features");
    require(op.table >= 0 && op.table < static_cast<std::int64_t>(graph_.rope_tables.size()), "table exists");
    const auto pairs = static_cast<std::int64_t>(graph_.rope_tables[op.table].inverse_frequencies.size());
    require(pairs > 0 && 2 * pairs <= op.head_dim, "rotated part fits the head");
    output(features(0));
  }
  void operator()(const Attention& op) const {
    expect(3, {op.heads * op.head_dim, op.kv_heads * op.head_dim, op.kv_heads * op.head_dim});
    require(op.kv_heads > 0 && op.heads % op.kv_heads == 0, "heads are a multiple of kv_heads");
    output(op.heads * op.head_dim);
  }
  void operator()(const GatedActivation&) const { expect(2, {}), same_inputs(); }
  void operator()(const Add&) const { expect(2, {}), same_inputs(); }

 private:
  std::int64_t features(std::size_t input) const { return graph_.values.at(node_.inputs.at(input)).features; }
  void require(bool condition, const char* what) const {
    if (!condition)
      throw InternalError("[graph.lint] {} in {}: violates '{}'", kind_name(node_.operation), graph_.module_name(node_),
                          what);
  }
  void expect(std::size_t count, const std::vector<std::int64_t>& sizes) const {
    require(node_.inputs.size() == count, "number of inputs");
    for (std::size_t i = 0; i < sizes.size(); ++i) require(features(i) == sizes[i], "features of the inputs");
  }
  void same_inputs() const {
    require(features(0) == features(1), "equal features of both inputs");
    output(features(0));
  }
  void output(std::int64_t size) const { require(graph_.values.at(node_.output).features == size, "output features"); }

  const Graph& graph_;
  const Node& node_;
};

}  // namespace

void lint(const Graph& graph) {
  const auto require = [](bool condition, const char* what) {
    if (!condition) throw InternalError("[graph.lint] violates '{}'", what);
  };
  const auto count = static_cast<ValueId>(graph.values.size());
  require(count > 0 && graph.values[0].producer == -1 && graph.values[0].features == 0, "value 0 is the token ids");
  require(graph.output >= 0 && graph.output < count, "the output is a value");
  std::vector<bool> produced(graph.values.size(), false);
  produced[Graph::kInput] = true;
  for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    require(node.module >= 0 && node.module < static_cast<ModuleId>(graph.modules.size()), "node has a module");
    for (const ValueId input : node.inputs)
      require(input >= 0 && input < count && produced[input], "inputs are produced before they are read");
    require(node.output > 0 && node.output < count && !produced[node.output], "each value has one producer");
    require(graph.values[node.output].producer == static_cast<NodeId>(n), "producer is recorded");
    produced[node.output] = true;
    std::visit(FeatureCheck(graph, node), node.operation);
  }
  for (const bool done : produced) require(done, "every value is produced");
  for (std::size_t m = 0; m < graph.modules.size(); ++m)
    require(graph.modules[m].parent < static_cast<ModuleId>(m), "a module's parent stands before it");
}

}  // namespace layerpress::graph
