#include "layerpress/setup/rounded_inputs.h"

#include <ATen/ATen.h>

#include <cmath>
#include <functional>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "layerpress/base/text.h"
#include "layerpress/graph/attention_heads.h"

namespace layerpress::setup {
namespace {

using quant::Dynamic;
using quant::Strategy;

/// A stored tensor by the name that compressed-tensors gives it, or nothing.
using FindTensor = std::function<std::optional<at::Tensor>(const std::string& name)>;

/// The numbers that a checkpoint stores for a value: one, or one for each of `heads`.
std::vector<double> stored_numbers(const FindTensor& find, const std::string& name, std::int64_t count = 1) {
  const std::optional<at::Tensor> found = find(name);
  if (!found)
    throw CheckpointError(
        "[eval.activations] '{}' is missing, which the scheme of its module needs; compress the model again", name);
  const at::Tensor tensor = found->to(at::kDouble).flatten().contiguous();
  if (tensor.numel() != count || !at::isfinite(tensor).all().item<bool>())
    throw CheckpointError("[eval.activations] '{}' is not {} finite number{}", name,
                          count == 1 ? "one" : fmt::to_string(count), count == 1 ? "" : "s");
  const auto* first = tensor.const_data_ptr<double>();
  return {first, first + count};
}

std::vector<double> stored_scales(const FindTensor& find, const std::string& name, std::int64_t count = 1) {
  std::vector<double> scales = stored_numbers(find, name, count);
  for (const double scale : scales)
    if (scale <= 0) throw CheckpointError("[eval.activations] '{}' is {}, but scales are positive", name, scale);
  return scales;
}

std::int64_t group_size(const quant::QuantizationArgs& args, const std::string& module, std::int64_t features) {
  const std::int64_t size = args.group_size.value_or(0);
  if (size < 1 || features % size != 0)
    throw CheckpointError(
        "[eval.activations] {}: groups of {} do not divide its {} inputs; leave --quantize-activations out", module,
        size, features);
  return size;
}

graph::RoundValues rounding_to(const quant::QuantizationArgs& args) {
  graph::RoundValues rounding;
  rounding.bits = args.num_bits, rounding.floats = args.type == quant::NumberType::kFloat;
  rounding.symmetric = args.symmetric;
  return rounding;
}

graph::RoundValues rounding_of(const quant::QuantizationArgs& args, const std::string& module, std::int64_t features,
                               const FindTensor& find) {
  graph::RoundValues rounding = rounding_to(args);
  switch (args.strategy) {
    case Strategy::kTensor:
      if (args.dynamic != Dynamic::kFalse) break;
      rounding.scales = stored_scales(find, module + ".input_scale");
      if (!args.symmetric) rounding.zero_points = stored_numbers(find, module + ".input_zero_point");
      return rounding;
    case Strategy::kToken:
      rounding.run = features;
      return rounding;
    case Strategy::kTensorGroup:
      rounding.global_scale = stored_scales(find, module + ".input_global_scale").front();
      rounding.run = group_size(args, module, features);
      return rounding;
    case Strategy::kGroup:
      if (args.dynamic == Dynamic::kFalse) break;
      rounding.run = group_size(args, module, features);
      rounding.power_scales = args.scale_dtype == "torch.uint8" || args.is_float(4);
      return rounding;
    default:
      break;
  }
  throw CheckpointError(
      "[eval.activations] {}: activations by {}, {}, cannot be computed; leave --quantize-activations out", module,
      name_of(args.strategy), args.dynamic == Dynamic::kFalse ? "static" : "dynamic");
}

/// `name`: "q", "k" or "v".
graph::RoundValues rounding_of_heads(const quant::QuantizationArgs& args, const std::string& name, std::int64_t heads,
                                     const FindTensor& find) {
  graph::RoundValues rounding = rounding_to(args);
  const std::int64_t count = args.strategy == Strategy::kAttentionHead ? heads : 1;
  rounding.scales = stored_scales(find, name + "_scale", count);
  if (!args.symmetric) rounding.zero_points = stored_numbers(find, name + "_zero_point", count);
  return rounding;
}

/// Copies a graph and inserts roundings.
class Rounding {
 public:
  explicit Rounding(const OpenedModel& opened) : opened_(opened), graph_(opened.traced.graph) {}

  std::size_t apply(graph::Graph& result) {
    result.modules = graph_.modules;
    result.rope_tables = graph_.rope_tables;
    place_.assign(graph_.values.size(), -1);
    for (std::size_t v = 0; v < graph_.values.size() && graph_.is_input(static_cast<graph::ValueId>(v)); ++v) {
      place_[v] = static_cast<graph::ValueId>(v);
      result.values.push_back(graph_.values[v]);
    }
    std::size_t count = 0;
    for (const graph::Node& node : graph_.nodes) {
      graph::Node kept = node;
      for (graph::ValueId& input : kept.inputs) input = place_[input];
      const std::vector<std::pair<std::size_t, graph::RoundValues>> roundings = roundings_before(node);
      for (const auto& [input, rounding] : roundings) kept.inputs[input] = rounded(result, node, input, rounding);
      count += roundings.empty() ? 0 : 1;
      place_[node.output] = add(result, std::move(kept), graph_.values[node.output]);
    }
    result.output = place_[graph_.output];
    graph::lint(result);
    return count;
  }

 private:
  /// By input.
  std::vector<std::pair<std::size_t, graph::RoundValues>> roundings_before(const graph::Node& node) const {
    if (const auto heads = graph::cached_attention(node.operation)) return roundings_before(node, *heads);
    const auto* linear = std::get_if<graph::Linear>(&node.operation);
    if (linear == nullptr) return {};
    const auto found = opened_.quantized.find(linear->weight);
    if (found == opened_.quantized.end() || !found->second.scheme.input_activations) return {};
    const source::StoredWeight& stored = found->second;
    const FindTensor find = [&](const std::string& name) -> std::optional<at::Tensor> {
      return stored.input_parameter ? stored.input_parameter(last_part(name)) : std::nullopt;
    };
    return {{0, rounding_of(*stored.scheme.input_activations, parent_name(linear->weight), linear->in_features, find)}};
  }

  std::vector<std::pair<std::size_t, graph::RoundValues>> roundings_before(const graph::Node& node,
                                                                           const graph::AttentionHeads& heads) const {
    const std::string& module = graph_.module_name(node);
    const auto found = opened_.quantized_attentions.find(module);
    if (found == opened_.quantized_attentions.end()) return {};
    const auto& [args, queries] = found->second;
    const FindTensor find = [&](const std::string& name) {
      return opened_.stored->contains(name) ? std::optional(opened_.stored->tensor(name)) : std::nullopt;
    };
    std::vector<std::pair<std::size_t, graph::RoundValues>> roundings;
    if (queries) roundings.emplace_back(0, rounding_of_heads(args, module + ".q", heads.heads, find));
    roundings.emplace_back(1, rounding_of_heads(args, module + ".k", heads.kv_heads, find));
    roundings.emplace_back(2, rounding_of_heads(args, module + ".v", heads.kv_heads, find));
    return roundings;
  }

  /// An input of `node` rounded: by an earlier node if one does the same.
  graph::ValueId rounded(graph::Graph& result, const graph::Node& node, std::size_t index,
                         const graph::RoundValues& rounding) {
    const graph::ValueId input = place_[node.inputs[index]];
    for (const graph::NodeId earlier : roundings_) {
      const graph::Node& own = result.nodes[earlier];
      if (own.inputs[0] == input && std::get<graph::RoundValues>(own.operation) == rounding) return own.output;
    }
    roundings_.push_back(static_cast<graph::NodeId>(result.nodes.size()));
    return add(result, {rounding, {input}, -1, node.module}, graph_.values[node.inputs[index]]);
  }

  static graph::ValueId add(graph::Graph& result, graph::Node node, graph::Value value) {
    value.producer = static_cast<graph::NodeId>(result.nodes.size());
    node.output = static_cast<graph::ValueId>(result.values.size());
    result.values.push_back(value);
    result.nodes.push_back(std::move(node));
    return result.values.size() - 1;
  }

  const OpenedModel& opened_;
  const graph::Graph& graph_;
  std::vector<graph::ValueId> place_;  ///< of the old graph's values in the new one
  std::vector<graph::NodeId> roundings_;
};

}  // namespace

std::size_t round_inputs(OpenedModel& opened) {
  for (const auto& [weight, stored] : opened.quantized)
    if (stored.scheme.output_activations)
      throw CheckpointError(
          "[eval.activations] {}: quantized outputs cannot be computed; leave --quantize-activations out",
          parent_name(weight));
  graph::Graph rounded;
  const std::size_t count = Rounding(opened).apply(rounded);
  opened.traced.graph = std::move(rounded);
  return count;
}

}  // namespace layerpress::setup
