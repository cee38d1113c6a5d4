#include "layerpress/graph/graph.h"

#include <cmath>
#include <set>
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

namespace {

/// Checks one node's inputs against its operation.
class FeatureCheck {
 public:
  FeatureCheck(const Graph& graph, const Node& node) : graph_(graph), node_(node) {}

  void operator()(const Embedding& op) const { expect(1, {0}), output(op.features); }
  void operator()(const Route& op) const {
    expect(1, {op.experts});
    require(op.top_k > 0 && op.top_k <= op.experts, "as many experts as are chosen");
    require(op.groups > 0 && op.experts % op.groups == 0 && op.top_groups > 0 && op.top_groups <= op.groups,
            "groups of experts");
    output(op.experts);
  }
  void operator()(const SelectTokens& op) const {
    expect(3, {features(0), op.experts, op.experts});
    require(op.expert >= 0 && op.expert < op.experts, "the expert exists");
    output(features(0), Rows::kSelected);
  }
  void operator()(const TakeRouted& op) const {
    expect(3, {features(0), op.experts, op.experts});
    require(op.expert >= 0 && op.expert < op.experts, "the expert exists");
    output(features(0), Rows::kSelected);
  }
  void operator()(const Expert& op) const {
    require(node_.inputs.size() == 2 || node_.inputs.size() == 3, "number of inputs");
    require(features(0) == op.intermediate && features(1) == op.experts, "features of the inputs");
    require(op.expert >= 0 && op.expert < op.experts, "the expert exists");
    const NodeId producer = graph_.values[node_.inputs[0]].producer;
    const auto* taken = producer < 0 ? nullptr : std::get_if<TakeRouted>(&graph_.nodes[producer].operation);
    require(taken != nullptr && taken->expert == op.expert, "the input has the rows that are routed to the expert");
    if (node_.inputs.size() == 3) require(features(2) == op.features, "features of the sum");
    output(op.features, Rows::kTokens);
  }
  void operator()(const Linear& op) const { expect(1, {op.in_features}), output(op.out_features); }
  void operator()(const RmsNorm& op) const {
    runs(op.size);
    require(op.rounded_once || op.weight_offset == 0, "an offset is added to the weight where it is rounded once");
    output(features(0));
  }
  void operator()(const LayerNorm& op) const { runs(op.size), output(features(0)); }
  void operator()(const Rotary& op) const {
    expect(1, {});
    require(op.head_dim > 0 && features(0) % op.head_dim == 0, "head_dim divides the features");
    require(op.table >= 0 && op.table < static_cast<std::int64_t>(graph_.rope_tables.size()), "table exists");
    const auto pairs = static_cast<std::int64_t>(graph_.rope_tables[op.table].inverse_frequencies.size());
    require(pairs > 0 && op.offset >= 0 && op.offset + 2 * pairs <= op.head_dim, "rotated part fits the head");
    output(features(0));
  }
  void operator()(const Attention& op) const {
    expect(3, {op.heads * op.head_dim, op.kv_heads * op.head_dim, op.kv_heads * op.value_dim()});
    require(op.kv_heads > 0 && op.heads % op.kv_heads == 0, "heads are a multiple of kv_heads");
    require(op.soft_cap >= 0, "a cap is positive");
    output(op.heads * op.value_dim());
  }
  void operator()(const GatedActivation&) const { expect(2, {}), same_inputs(); }
  void operator()(const Add&) const { expect(2, {}), same_inputs(); }
  void operator()(const Gate&) const {
    expect(2, {1});
    require(rows(0) == rows(1), "equal rows of both inputs");
    output(features(1));
  }
  void operator()(const Scale&) const { expect(1, {}), output(features(0)); }
  void operator()(const SoftCap& op) const {
    expect(1, {});
    require(op.cap > 0, "a cap is positive");
    output(features(0));
  }
  void operator()(const Slice& op) const {
    runs(op.size);
    require(op.begin >= 0 && op.begin < op.end && op.end <= op.size, "the slice lies inside a run");
    output(features(0) / op.size * (op.end - op.begin));
  }
  void operator()(const JoinHeads& op) const {
    expect(2, {op.heads * op.first, op.second});
    require(rows(0) == rows(1), "equal rows of both inputs");
    output(op.heads * (op.first + op.second));
  }
  void operator()(const PatchEmbedding& op) const {
    expect(1, {op.channels * op.patch_size * op.patch_size}), in_patches();
    require(op.patch_size > 0 && op.image_size >= op.patch_size && op.tiles > 0, "tiles hold patches");
    output(op.features);
  }
  void operator()(const TileEmbedding& op) const { expect(1, {op.features}), in_patches(), output(op.features); }
  void operator()(const ClassEmbedding& op) const { expect(1, {op.features}), in_patches(), output(op.features); }
  void operator()(const PatchPosition& op) const { expect(1, {op.features}), in_patches(), output(op.features); }
  void operator()(const ZeroPadding&) const { expect(1, {}), in_patches(), output(features(0)); }
  void operator()(const VisionAttention& op) const {
    const std::int64_t size = op.heads * op.head_dim;
    expect(3, {size, size, size}), in_patches(), output(size);
  }
  void operator()(const Activation&) const { expect(1, {}), output(features(0)); }
  void operator()(const GatedAdd&) const { expect(2, {}), same_inputs(); }
  void operator()(const VisionFeatures&) const {
    const auto count = node_.inputs.size();
    expect(count, std::vector<std::int64_t>(count, features(0))), in_patches();
    output(features(0) * static_cast<std::int64_t>(count), Rows::kVision);
  }
  void operator()(const SelectIllustrated&) const {
    expect(1, {});
    require(rows(0) == Rows::kTokens, "tokens are selected");
    output(features(0), Rows::kIllustrated);
  }
  void operator()(const MergeIllustrated&) const {
    expect(2, {features(0), features(0)});
    require(rows(0) == Rows::kTokens && rows(1) == Rows::kIllustrated, "tokens of all samples and of some");
    output(features(0));
  }
  void operator()(const CrossAttention& op) const {
    expect(3, {op.heads * op.head_dim, op.kv_heads * op.head_dim, op.kv_heads * op.head_dim});
    require(op.kv_heads > 0 && op.heads % op.kv_heads == 0, "heads are a multiple of kv_heads");
    require(rows(0) == Rows::kIllustrated && rows(1) == Rows::kVision && rows(2) == Rows::kVision,
            "illustrated tokens attend to images");
    output(op.heads * op.head_dim);
  }
  void operator()(const MaskUnattending&) const {
    expect(1, {});
    require(rows(0) == Rows::kIllustrated, "rows are illustrated tokens");
    output(features(0));
  }

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
  void runs(std::int64_t size) const {
    expect(1, {});
    require(size > 0 && features(0) % size == 0, "runs of equal size make up the features");
  }
  void in_patches() const {
    for (std::size_t i = 0; i < node_.inputs.size(); ++i) require(rows(i) == Rows::kPatches, "rows are patches");
  }
  void same_inputs() const {
    require(features(0) == features(1) && rows(0) == rows(1), "equal features and rows of both inputs");
    output(features(0));
  }
  Rows rows(std::size_t input) const { return graph_.values.at(node_.inputs.at(input)).rows; }
  void output(std::int64_t size) const { output(size, rows(0)); }
  void output(std::int64_t size, Rows rows) const {
    require(graph_.values.at(node_.output).features == size, "output features");
    require(graph_.values.at(node_.output).rows == rows, "output rows");
  }

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
    std::visit(FeatureCheck(graph, node), node.operation);
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

}  // namespace layerpress::graph
