#include "layerpress/importer/lowering.h"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>

#include "layerpress/base/error.h"
#include "layerpress/importer/expert_lowering.h"
#include "layerpress/importer/norm_pattern.h"
#include "layerpress/importer/rotary_pattern.h"

namespace layerpress::importer {
namespace {

class Matcher {
 public:
  Matcher(const ExportedGraph& graph, const Layouts& layouts, std::vector<graph::RopeTable>& tables, Lowerings& found)
      : graph_(graph), layouts_(layouts), found_(found), rotary_(graph, layouts, tables) {
    for (const ExportedNode& node : graph.nodes) {
      if (const auto table = table_of(node)) ++products_[*table];
      if (node.op == "aten.embedding.default")
        if (const auto table = value_argument(node, 0); table && graph.parameters.contains(*table))
          embeddings_.insert(graph.parameters.at(*table).sources[0].name);
    }
  }

  void match(const ExportedNode& node) {
    if (layouts_.type(node.out).dtype != graph_.dtype || layouts_.origin(node.out) != node.out) {
      // A cast after a norm changes the dtype, so that it is an origin; everything else of another dtype stays.
      return;
    }
    std::optional<Lowered> lowered;
    if (node.op == "aten.embedding.default") lowered = embedding(node);
    if (const auto table = table_of(node))
      lowered = linear(node, table, node.op == kLinear ? value_argument(node, 2) : std::nullopt);
    if (node.op == "aten.layer_norm.default") lowered = layer_norm(node);
    if (node.op == "layerpress.attention.default") lowered = attention(node);
    if (node.op == kMergeImages) lowered = images(node, graph::MergeImages{graph_.position_axes});
    if (node.op == kAddImages) lowered = images(node, graph::AddImages{layer_of(node)});
    if (node.op == "aten.mul.Tensor" || node.op == "aten._to_copy.default" || node.op == "aten.type_as.default")
      lowered = match_rms_norm(graph_, layouts_, node);
    if (!lowered && node.op == "aten.mul.Tensor") lowered = gated_activation(node);
    if (!lowered && node.op == "aten.mul.Tensor") lowered = gate(node);
    if (node.op == "aten.add.Tensor") lowered = add(node);
    if (!lowered && (node.op == "aten.add.Tensor" || node.op == "aten.cat.default")) lowered = rotary_.match(node);
    if (lowered) found_.emplace(node.out, std::move(*lowered));
  }

 private:
  bool computes(std::int64_t value) const {
    return layouts_.type(value).dtype == graph_.dtype && layouts_.has_rows(value);
  }
  bool is_ours(std::int64_t value) const { return found_.count(layouts_.origin(value)) != 0; }

  /// The name in the checkpoint of a parameter that is one of its tensors, of this shape; "" otherwise.
  std::string stored_weight(std::optional<std::int64_t> value, const std::vector<std::int64_t>& shape) const {
    if (!value) return "";
    const auto parameter = graph_.parameters.find(*value);
    if (parameter == graph_.parameters.end() || !parameter->second.is_stored() ||
        layouts_.type(*value).dtype != graph_.dtype || parameter->second.sources[0].shape != shape)
      return "";
    return parameter->second.sources[0].name;
  }

  std::optional<Lowered> embedding(const ExportedNode& node) const {
    const auto table = value_argument(node, 0), ids = value_argument(node, 1);
    if (!table || !ids || layouts_.origin(*ids) != graph_.token_ids || layouts_.type(*table).shape.size() != 2)
      return std::nullopt;
    const std::int64_t rows = layouts_.type(*table).shape[0].factor, features = layouts_.type(*table).shape[1].factor;
    const std::string weight = stored_weight(table, {rows, features});
    if (weight.empty()) return std::nullopt;
    return Lowered{graph::Embedding{weight, rows, features}, {graph_.token_ids}};
  }

  /// The matrix [out, in] that a node multiplies with.
  std::optional<std::int64_t> table_of(const ExportedNode& node) const {
    if (node.op == kLinear) return value_argument(node, 1);
    const bool multiplies = node.op == "aten.matmul.default" || node.op == "aten.mm.default";
    return multiplies ? transposed(value_argument(node, 1)) : std::nullopt;
  }

  /// The matrix that this value is the transposed of.
  std::optional<std::int64_t> transposed(std::optional<std::int64_t> value) const {
    const ExportedNode* node = value ? layouts_.producer(*value) : nullptr;
    if (node == nullptr || layouts_.type(*value).shape.size() != 2) return std::nullopt;
    const Json& arguments = node->arguments;
    const bool turns = node->op == "aten.t.default" || node->op == "aten.numpy_T.default" ||
                       (node->op == "aten.permute.default" && arguments.at(1) == Json::array({1, 0})) ||
                       (node->op == "aten.transpose.int" && arguments.at(1) != arguments.at(2));
    return turns ? value_argument(*node, 0) : std::nullopt;
  }

  std::optional<Lowered> linear(const ExportedNode& node, std::optional<std::int64_t> table,
                                std::optional<std::int64_t> bias) const {
    const auto x = value_argument(node, 0);
    // A weight that several products share would be compressed several times.
    if (table && products_.at(*table) > 1) return std::nullopt;
    if (!x || !table || !computes(*x) || !layouts_.tokens_first(*x) || layouts_.type(*table).shape.size() != 2)
      return std::nullopt;
    const std::int64_t out = layouts_.type(*table).shape[0].factor, in = layouts_.type(*table).shape[1].factor;
    graph::Linear linear{stored_weight(table, {out, in}), stored_weight(bias, {out}), in, out};
    const bool has_bias = bias.has_value();
    if (linear.weight.empty() || layouts_.features(*x) != in || has_bias != !linear.bias.empty()) return std::nullopt;
    const ExportedParameter& parameter = graph_.parameters.at(*table);
    const bool tied = !parameter.tied.empty();
    // Layers that share a weight would lose it; a head gets a tensor of its own.
    if (tied && !embeddings_.contains(linear.weight)) return std::nullopt;
    const std::string& weight = tied ? parameter.name : linear.weight;
    if (!weight.ends_with(".weight")) return std::nullopt;
    const std::string name = weight.substr(0, weight.size() - 7);
    return Lowered{linear, {layouts_.origin(*x)}, tied ? "" : name, tied ? name : ""};
  }

  std::optional<Lowered> layer_norm(const ExportedNode& node) const {
    const auto x = value_argument(node, 0);
    if (!x || !computes(*x) || node.arguments.size() < 3 || node.arguments[1].size() != 1 ||
        !node.arguments[1][0].is_number_integer())
      return std::nullopt;
    const auto size = json_integer(node.arguments[1][0]);
    const auto bias = value_argument(node, 3);
    graph::LayerNorm norm{stored_weight(value_argument(node, 2), {size}), stored_weight(bias, {size}), size,
                          number_argument(node, 4).value_or(1e-5)};
    if (norm.weight.empty() || bias.has_value() != !norm.bias.empty() || layouts_.last_size(*x) != size)
      return std::nullopt;
    return Lowered{norm, {layouts_.origin(*x)}};
  }

  /// A node that changes the rows of images.
  Lowered images(const ExportedNode& node, graph::Operation operation) const {
    const auto x = value_argument(node, 0);
    if (!x || !computes(*x) || !layouts_.tokens_first(*x))
      throw CheckpointError(
          "[importer.images] module '{}': expected one row of embeddings per token; export the graph again",
          graph_.modules[node.module].first);
    return {std::move(operation), {layouts_.origin(*x)}};
  }

  std::int64_t layer_of(const ExportedNode& node) const {
    const auto layer = number_argument(node, 1);
    if (!layer || !(*layer >= 0 && *layer < graph::AddImages::kMostLayers))
      throw CheckpointError(
          "[importer.images] module '{}': it adds images to a layer that does not exist; export the graph again",
          graph_.modules[node.module].first);
    return static_cast<std::int64_t>(*layer);
  }

  std::optional<Lowered> attention(const ExportedNode& node) const {
    const auto q = value_argument(node, 0), k = value_argument(node, 1), v = value_argument(node, 2);
    if (!q || !k || !v || node.arguments.size() != 10 || !node.arguments[7].is_string()) return std::nullopt;
    for (const std::size_t absent : {3, 4, 5})
      if (!node.arguments[absent].is_null()) return std::nullopt;
    auto kind = node.arguments[7].get<std::string>();
    const bool mutual = kind.starts_with(kMutual);
    if (mutual) kind.erase(0, kMutual.size());
    const auto window = number_argument(node, 8), scale = number_argument(node, 6), cap = number_argument(node, 9);
    if ((kind != "causal" && kind != "sliding") || !window || !scale || !cap) return std::nullopt;
    for (const std::int64_t value : {*q, *k, *v})
      if (!computes(value) || layouts_.axis(value) != 2 || layouts_.type(value).shape.size() != 4) return std::nullopt;
    const auto size = [&](std::int64_t value, std::size_t d) { return layouts_.type(value).shape[d].factor; };
    graph::Attention op{.heads = size(*q, 1),
                        .kv_heads = size(*k, 1),
                        .head_dim = size(*q, 3),
                        .scale = *scale,
                        .window = kind == "sliding" ? static_cast<std::int64_t>(*window) : 0,
                        .soft_cap = *cap,
                        .value_head_dim = size(*v, 3) == size(*q, 3) ? 0 : size(*v, 3),
                        .mutual = mutual};
    if (size(*k, 3) != op.head_dim || size(*v, 1) != op.kv_heads || op.heads % op.kv_heads != 0) return std::nullopt;
    return Lowered{op, {layouts_.origin(*q), layouts_.origin(*k), layouts_.origin(*v)}};
  }

  std::optional<Lowered> gated_activation(const ExportedNode& node) const {
    const auto a = value_argument(node, 0), b = value_argument(node, 1);
    if (!a || !b) return std::nullopt;
    for (const auto& [gate, up] : {std::pair(*a, *b), std::pair(*b, *a)}) {
      const ExportedNode* activation = layouts_.producer(gate);
      const std::string function = activation == nullptr ? "" : function_of(*activation);
      if (function.empty()) continue;
      const std::int64_t x = *value_argument(*activation, 0);
      if (is_ours(x) && is_ours(up) && computes(x) && layouts_.type(x).shape == layouts_.type(up).shape &&
          layouts_.type(x).dtype == layouts_.type(up).dtype)
        return Lowered{graph::GatedActivation{function}, {layouts_.origin(x), layouts_.origin(up)}};
    }
    return std::nullopt;
  }

  std::optional<Lowered> gate(const ExportedNode& node) const {
    const auto a = value_argument(node, 0), b = value_argument(node, 1);
    if (!a || !b) return std::nullopt;
    for (const auto& [share, x] : {std::pair(*a, *b), std::pair(*b, *a)}) {
      const ExportedNode* sigmoid = layouts_.producer(share);
      if (sigmoid == nullptr || sigmoid->op != "aten.sigmoid.default") continue;
      const std::int64_t logit = *value_argument(*sigmoid, 0);
      if (computes(logit) && layouts_.tokens_first(logit) && layouts_.features(logit) == 1 && is_ours(x) &&
          computes(x) && layouts_.tokens_first(x))
        return Lowered{graph::Gate{}, {layouts_.origin(logit), layouts_.origin(x)}};
    }
    return std::nullopt;
  }

  static std::string function_of(const ExportedNode& node) {
    if (!value_argument(node, 0)) return "";
    if (node.op == "aten.silu.default") return "silu";
    if (node.op != "aten.gelu.default") return "";
    const bool tanh = node.arguments.size() > 1 && node.arguments[1] == Json("tanh");
    return tanh ? "gelu_tanh" : "gelu";
  }

  std::optional<Lowered> add(const ExportedNode& node) const {
    const auto a = value_argument(node, 0), b = value_argument(node, 1);
    if (!a || !b || node.arguments.size() != 2 || !computes(*a) || !computes(*b)) return std::nullopt;
    if (layouts_.type(*a) != layouts_.type(*b) || !layouts_.tokens_first(*a) || !(is_ours(*a) || is_ours(*b)))
      return std::nullopt;
    return Lowered{graph::Add{}, {layouts_.origin(*a), layouts_.origin(*b)}};
  }

  static constexpr std::string_view kMutual = "mutual ";
  static constexpr const char* kLinear = "aten.linear.default";
  const ExportedGraph& graph_;
  const Layouts& layouts_;
  Lowerings& found_;
  RotaryPattern rotary_;
  std::map<std::int64_t, int> products_;  // that read each weight
  std::set<std::string> embeddings_;      // tensors
};

}  // namespace

Lowerings lower(ExportedGraph& graph, Layouts& layouts, std::vector<graph::RopeTable>& tables) {
  Lowerings found;
  add_routing_matrices(graph);
  layouts.refresh();
  Matcher matcher(graph, layouts, tables, found);
  for (const ExportedNode& node : graph.nodes) {
    matcher.match(node);
    if (node.op == kExperts)
      if (auto experts = lower_experts(graph, layouts, found, node)) found.emplace(node.out, std::move(*experts));
  }
  return found;
}

}  // namespace layerpress::importer
