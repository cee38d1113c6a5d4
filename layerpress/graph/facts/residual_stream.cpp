#include "layerpress/graph/facts/residual_stream.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>
#include <variant>

namespace layerpress::graph {
namespace {

bool keeps_rows(const Operation& operation, std::size_t input) {
  const auto keeps = [&](const auto& kind) {
    if constexpr (requires { kind.keeps_rows(input); }) return kind.keeps_rows(input);
    return false;
  };
  return std::visit(keeps, operation);
}

/// The weights of the linears by which the node reads an input, "" where it takes the type alone; none: it also does something else.
std::vector<std::string> weights_of_linears(const Node& node, ValueId value) {
  if (const auto* linear = std::get_if<Linear>(&node.operation)) return {linear->weight};
  const auto* program = std::get_if<Aten>(&node.operation);
  std::vector<std::string> weights;
  for (std::size_t i = 0; program != nullptr && i < node.inputs.size(); ++i) {
    if (node.inputs[i] != value) continue;
    const std::size_t known = weights.size();
    for (std::size_t k = 0; k < program->linear_inputs.size(); ++k)
      if (program->linear_inputs[k] == static_cast<std::int64_t>(i)) weights.push_back(program->linear_weights[k]);
    if (weights.size() == known) return {};
  }
  return weights;
}

/// The norm's size; 0 if it is none whose weight readers can take.
std::int64_t norm_size(const Operation& operation) {
  const auto* norm = std::get_if<RmsNorm>(&operation);
  return norm == nullptr ? 0 : norm->size;
}

class StreamSearch {
 public:
  explicit StreamSearch(const Graph& graph) : graph_(graph), consumers_(graph.consumers()) {}

  ResidualStream find() {
    const auto first = std::find_if(graph_.nodes.begin(), graph_.nodes.end(),
                                    [](const Node& node) { return std::holds_alternative<Embedding>(node.operation); });
    if (first == graph_.nodes.end()) {
      stream_.hindrance = "the model's graph has no embedding of tokens";
      return std::move(stream_);
    }
    stream_.width = graph_.values[first->output].features;
    add(first->output);
    while (!open_.empty() && stream_.hindrance.empty()) {
      const ValueId value = *open_.begin();
      open_.erase(open_.begin());
      follow_back(value);
      follow(value);
    }
    return std::move(stream_);
  }

 private:
  void add(ValueId value) {
    if (stream_values_.insert(value).second) open_.insert(value);
    if (value == graph_.output) hinder(graph_.nodes[graph_.values[value].producer], "is the model's output");
    if (normed_.count(value) != 0)
      hinder(graph_.nodes[normed_.at(value)], "is a norm whose result is added to the residual stream");
  }

  /// With its kind, where its module does not say it.
  std::string name_of(const Node& node) const {
    const std::string& module = graph_.module_name(node);
    const bool is_leaf = !weights_of(node.operation).empty();
    if (is_leaf) return module;
    const char* kind =
        std::holds_alternative<Aten>(node.operation) ? "an imported operation" : kind_name(node.operation);
    return fmt::format("{} of {}", kind, module.empty() ? "the model" : module);
  }

  void hinder(const Node& node, const std::string& reason) {
    if (stream_.hindrance.empty()) stream_.hindrance = name_of(node) + " " + reason;
  }

  /// What the value is made of.
  void follow_back(ValueId value) {
    if (graph_.is_input(value)) {
      stream_.hindrance = "the model's inputs are added to the residual stream";
      return;
    }
    const NodeId n = graph_.values[value].producer;
    const Node& node = graph_.nodes[n];
    if (const auto* embedding = std::get_if<Embedding>(&node.operation)) {
      stream_.writers.push_back({n, embedding->weight, ""});
    } else if (const auto* linear = std::get_if<Linear>(&node.operation)) {
      stream_.writers.push_back({n, linear->weight, linear->bias});
    } else if (const auto* expert = std::get_if<Expert>(&node.operation)) {
      stream_.writers.push_back({n, expert->down, expert->down_bias});
      if (node.inputs.size() > 2) add(node.inputs[2]);
    } else if (norm_size(node.operation) > 0 || std::holds_alternative<LayerNorm>(node.operation)) {
      hinder(node, "is a norm whose result is added to the residual stream");
    } else {
      if (std::holds_alternative<MergeImages>(node.operation) || std::holds_alternative<AddImages>(node.operation))
        stream_.images.insert(n);
      bool keeps = false;
      for (std::size_t input = 0; input < node.inputs.size(); ++input) {
        if (!keeps_rows(node.operation, input)) continue;
        keeps = true;
        add(node.inputs[input]);
      }
      if (!keeps) hinder(node, "writes into the residual stream and is no linear");
    }
  }

  /// What reads the value.
  void follow(ValueId value) {
    for (const NodeId n : consumers_[value]) {
      const Node& node = graph_.nodes[n];
      for (std::size_t input = 0; input < node.inputs.size(); ++input) {
        if (node.inputs[input] != value) continue;
        if (const auto weights = weights_of_linears(node, value); !weights.empty()) {
          read(n, weights, -1);
        } else if (norm_size(node.operation) == stream_.width) {
          stream_.norms.insert(n);
          follow_normed(node.output, n);
        } else if (keeps_rows(node.operation, input)) {
          add(node.output);
        } else if (std::holds_alternative<LayerNorm>(node.operation)) {
          hinder(node, "is a LayerNorm, which subtracts the mean of what it reads");
        } else {
          hinder(node, "reads the residual stream and is no linear");
        }
      }
    }
  }

  /// Whether a row of the node's output is the row of this value times a number.
  static bool keeps_only(const Node& node, ValueId value) {
    std::vector<ValueId> kept;
    for (std::size_t input = 0; input < node.inputs.size(); ++input)
      if (keeps_rows(node.operation, input)) kept.push_back(node.inputs[input]);
    return kept == std::vector<ValueId>{value} && std::count(node.inputs.begin(), node.inputs.end(), value) == 1;
  }

  /// What reads rows that a norm has made: linears, perhaps after a choice of rows or a product with numbers.
  void follow_normed(ValueId value, NodeId norm) {
    normed_[value] = norm;
    if (stream_values_.count(value) != 0 || value == graph_.output)
      hinder(graph_.nodes[norm], "is a norm whose result is added to the residual stream");
    for (const NodeId n : consumers_[value]) {
      const Node& node = graph_.nodes[n];
      if (const auto weights = weights_of_linears(node, value); !weights.empty())
        read(n, weights, norm);
      else if (keeps_only(node, value))
        follow_normed(node.output, norm);
      else
        hinder(graph_.nodes[norm], fmt::format("is a norm that {} reads, which is no linear", name_of(node)));
    }
  }

  void read(NodeId n, const std::vector<std::string>& weights, NodeId norm) {
    for (const std::string& weight : weights)
      if (!weight.empty() &&
          std::none_of(stream_.readers.begin(), stream_.readers.end(), [&](const ResidualStream::Reader& reader) {
            return reader.node == n && reader.weight == weight;
          }))
        stream_.readers.push_back({n, weight, norm});
  }

  const Graph& graph_;
  std::vector<std::vector<NodeId>> consumers_;
  ResidualStream stream_;
  std::set<ValueId> stream_values_, open_;
  std::map<ValueId, NodeId> normed_;  // by value, the norm
};

}  // namespace

ResidualStream residual_stream(const Graph& graph) { return StreamSearch(graph).find(); }

}  // namespace layerpress::graph
