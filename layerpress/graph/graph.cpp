#include "layerpress/graph/graph.h"

#include <cmath>
#include <utility>
#include <variant>

#include "layerpress/base/error.h"

namespace layerpress::graph {

std::vector<double> RopeTable::frequencies_for(std::int64_t length) const {
  if (original_length <= 0 || length <= original_length) return inverse_frequencies;
  if (!long_inverse_frequencies.empty()) return long_inverse_frequencies;
  if (ntk_factor <= 0) return inverse_frequencies;
  // Dynamic NTK: theta grows such that the longest position keeps the angle that it had at the original length.
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

const char* rows_name(Rows rows) {
  switch (rows) {
    case Rows::kTokens:
      return "tokens";
    case Rows::kSelected:
      return "selected";
    case Rows::kIllustrated:
      return "illustrated";
    case Rows::kPatches:
      return "patches";
    case Rows::kVision:
      return "vision";
  }
  return "";
}

void lint(const Graph& graph) {
  const auto require = [](bool condition, const char* what) {
    if (!condition) throw InternalError("[graph.lint] violates '{}'", what);
  };
  const auto count = static_cast<ValueId>(graph.values.size());
  require(count > 0 && graph.values[0].producer == -1 && graph.values[0].features == 0, "value 0 is the token ids");
  require(graph.output >= 0 && graph.output < count, "the output is a value");
  std::vector<bool> produced(graph.values.size(), false);
  bool is_input = true;
  for (std::size_t v = 0; v < graph.values.size(); ++v) {
    is_input = is_input && graph.values[v].producer < 0;
    produced[v] = is_input;
  }
  for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    require(node.module >= 0 && node.module < static_cast<ModuleId>(graph.modules.size()), "node has a module");
    for (const ValueId input : node.inputs)
      require(input >= 0 && input < count && produced[input], "inputs are produced before they are read");
    require(node.output > 0 && node.output < count && !produced[node.output], "each value has one producer");
    require(graph.values[node.output].producer == static_cast<NodeId>(n), "producer is recorded");
    produced[node.output] = true;
    std::visit([&](const auto& kind) { kind.check(NodeCheck(graph, node)); }, node.operation);
  }
  for (const bool done : produced) require(done, "every value is produced");
  for (std::size_t m = 0; m < graph.modules.size(); ++m)
    require(graph.modules[m].parent < static_cast<ModuleId>(m), "a module's parent stands before it");
}

std::vector<std::string> weight_names(const Graph& graph, const std::vector<NodeId>& nodes) {
  std::vector<std::string> names;
  std::set<std::string> seen;
  for (const NodeId n : nodes)
    for (WeightUse& use : weights_of(graph.nodes[n].operation))
      if (seen.insert(use.name).second) names.push_back(std::move(use.name));
  return names;
}

std::set<std::string> weights_read(const Graph& graph) {
  std::set<std::string> names;
  for (const Node& node : graph.nodes)
    for (const WeightUse& use : weights_of(node.operation)) names.insert(use.name);
  return names;
}

}  // namespace layerpress::graph
