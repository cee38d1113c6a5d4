#include "layerpress/graph/text.h"

#include <fmt/format.h>

#include <variant>

#include "layerpress/base/json.h"

namespace layerpress::graph {
namespace {

template <typename Visited>
std::string attributes_text(const Visited& visited) {
  OrderedJson attributes = OrderedJson::object();
  Visited::visit(visited, [&](const char* name, const auto& field) { attributes[name] = field; });
  return attributes.dump();
}

/// "576", or "1280 patches" if the rows are not tokens.
std::string value_text(const Value& value) {
  if (value.rows == Rows::kTokens) return fmt::format("{}", value.features);
  return fmt::format("{} {}", value.features, rows_name(value.rows));
}

std::string constant_text(const Constant& constant) {
  OrderedJson json = {{"name", constant.name}, {"dtype", constant.dtype}, {"shape", constant.shape}};
  std::string hex;
  for (const char byte : constant.bytes) hex += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  json["bytes"] = hex;
  return json.dump();
}

std::string node_text(const Graph& graph, const Node& node) {
  std::string inputs;
  for (const ValueId input : node.inputs) inputs += fmt::format("{}%{}", inputs.empty() ? "" : ", ", input);
  const std::string attributes = std::visit([](const auto& op) { return attributes_text(op); }, node.operation);
  return fmt::format("%{} [{}] = {}({}) {} in {}\n", node.output, value_text(graph.values[node.output]),
                     kind_name(node.operation), inputs, attributes, node.module);
}

}  // namespace

std::string to_text(const Graph& graph) {
  std::string text;
  for (const RopeTable& table : graph.rope_tables) text += "rope " + attributes_text(table) + "\n";
  for (const Constant& constant : graph.constants) text += "constant " + constant_text(constant) + "\n";
  for (const Module& module : graph.modules)
    text += fmt::format("module \"{}\" {} in {}\n", module.name, module.class_name, module.parent);
  for (std::size_t v = 1; v < graph.values.size() && graph.is_input(static_cast<ValueId>(v)); ++v)
    text += fmt::format("input %{} [{}]\n", v, value_text(graph.values[v]));
  for (const Node& node : graph.nodes) text += node_text(graph, node);
  return text + fmt::format("output %{}\n", graph.output);
}

}  // namespace layerpress::graph
