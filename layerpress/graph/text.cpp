#include "layerpress/graph/text.h"

#include <exception>
#include <sstream>
#include <utility>
#include <variant>

#include "layerpress/base/error.h"
#include "layerpress/base/json.h"

namespace layerpress::graph {
namespace {

template <typename Visited>
std::string attributes_text(const Visited& visited) {
  OrderedJson attributes = OrderedJson::object();
  Visited::visit(visited, [&](const char* name, const auto& field) { attributes[name] = field; });
  return attributes.dump();
}

template <typename Visited>
void read_attributes(Visited& visited, const Json& attributes) {
  Visited::visit(visited, [&](const char* name, auto& field) { attributes.at(name).get_to(field); });
}

/// Creates the operation of kind `kind` by trying each alternative of the variant.
template <std::size_t kIndex = 0>
Operation make_operation(const std::string& kind, const Json& attributes) {
  if constexpr (kIndex == std::variant_size_v<Operation>) {
    throw InternalError("[graph.parse] unknown kind of node '{}'", kind);
  } else {
    using Kind = std::variant_alternative_t<kIndex, Operation>;
    if (kind != Kind::kKind) return make_operation<kIndex + 1>(kind, attributes);
    Kind operation;
    read_attributes(operation, attributes);
    return operation;
  }
}

/// "576", or "1280 patches" if the rows are not tokens.
std::string value_text(const Value& value) {
  if (value.rows == Rows::kTokens) return fmt::format("{}", value.features);
  return fmt::format("{} {}", value.features, rows_name(value.rows));
}

Value parse_value(const std::string& text, NodeId producer) {
  Value value{std::stoll(text), producer, Rows::kTokens};
  const auto space = text.find(' ');
  if (space == std::string::npos) return value;
  for (const Rows rows : {Rows::kSelected, Rows::kIllustrated, Rows::kPatches, Rows::kVision})
    if (text.substr(space + 1) == rows_name(rows)) {
      value.rows = rows;
      return value;
    }
  throw InternalError("unknown rows '{}'", text.substr(space + 1));
}

std::string constant_text(const Constant& constant) {
  OrderedJson json = {{"name", constant.name}, {"dtype", constant.dtype}, {"shape", constant.shape}};
  std::string hex;
  for (const char byte : constant.bytes) hex += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  json["bytes"] = hex;
  return json.dump();
}

Constant parse_constant(const Json& json) {
  Constant constant{json.at("name"), json.at("dtype"), json.at("shape"), ""};
  const auto hex = json.at("bytes").get<std::string>();
  if (hex.size() % 2 != 0) throw InternalError("half a byte");
  for (std::size_t i = 0; i < hex.size(); i += 2)
    constant.bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  return constant;
}

std::string node_text(const Graph& graph, const Node& node) {
  std::string inputs;
  for (const ValueId input : node.inputs) inputs += fmt::format("{}%{}", inputs.empty() ? "" : ", ", input);
  const std::string attributes = std::visit([](const auto& op) { return attributes_text(op); }, node.operation);
  return fmt::format("%{} [{}] = {}({}) {} in {}\n", node.output, value_text(graph.values[node.output]),
                     kind_name(node.operation), inputs, attributes, node.module);
}

/// Splits one line at fixed words.
class LineReader {
 public:
  explicit LineReader(const std::string& line) : rest_(line) {}
  /// Consumes the text up to `mark`, including the mark; returns the text before it.
  std::string until(const std::string& mark) {
    const auto at = rest_.find(mark);
    if (at == std::string::npos) throw InternalError("expected '{}'", mark);
    std::string piece = rest_.substr(0, at);
    rest_ = rest_.substr(at + mark.size());
    return piece;
  }
  /// The same up to the last `mark`.
  std::string until_last(const std::string& mark) {
    const auto at = rest_.rfind(mark);
    if (at == std::string::npos) throw InternalError("expected '{}'", mark);
    std::string piece = rest_.substr(0, at);
    rest_ = rest_.substr(at + mark.size());
    return piece;
  }
  const std::string& rest() const { return rest_; }

 private:
  std::string rest_;
};

Value& value_at(Graph& graph, ValueId id) {
  if (id < 0 || id > 10'000'000) throw InternalError("value %{} is out of range", id);
  if (graph.values.size() <= static_cast<std::size_t>(id)) graph.values.resize(id + 1);
  return graph.values[id];
}

void parse_node(Graph& graph, LineReader line) {
  Node node;
  line.until("%");
  node.output = std::stoi(line.until(" ["));
  const std::string value = line.until("] = ");
  const std::string kind = line.until("(");
  std::istringstream inputs(line.until(") "));
  for (std::string input; std::getline(inputs, input, ',');)
    node.inputs.push_back(std::stoi(input.substr(input.find('%') + 1)));
  node.operation = make_operation(kind, Json::parse(line.until_last(" in ")));
  node.module = std::stoi(line.rest());
  value_at(graph, node.output) = parse_value(value, static_cast<NodeId>(graph.nodes.size()));
  graph.nodes.push_back(std::move(node));
}

void parse_line(Graph& graph, const std::string& text) {
  LineReader line(text);
  if (text.rfind("rope ", 0) == 0) {
    line.until("rope ");
    RopeTable table;
    read_attributes(table, Json::parse(line.rest()));
    graph.rope_tables.push_back(std::move(table));
  } else if (text.rfind("constant ", 0) == 0) {
    line.until("constant ");
    graph.constants.push_back(parse_constant(Json::parse(line.rest())));
  } else if (text.rfind("module ", 0) == 0) {
    line.until("\"");
    Module module;
    module.name = line.until("\" ");
    module.class_name = line.until(" in ");
    module.parent = std::stoi(line.rest());
    graph.modules.push_back(std::move(module));
  } else if (text.rfind("input ", 0) == 0) {
    line.until("%");
    Value& input = value_at(graph, std::stoi(line.until(" [")));
    input = parse_value(line.until("]"), -1);
  } else if (text.rfind("output ", 0) == 0) {
    line.until("%");
    graph.output = std::stoi(line.rest());
  } else if (!text.empty()) {
    parse_node(graph, line);
  }
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

Graph parse_text(const std::string& text) {
  Graph graph;
  graph.values.push_back({});
  std::istringstream lines(text);
  std::size_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    try {
      parse_line(graph, line);
    } catch (const std::exception& error) {
      throw InternalError("[graph.parse] line {}: {}", number, error.what());
    }
  }
  lint(graph);
  return graph;
}

}  // namespace layerpress::graph
