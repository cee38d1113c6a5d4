#include "layerpress/setup/rounded_inputs.h"

#include <ATen/ATen.h>

#include <cmath>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "layerpress/base/text.h"

namespace layerpress::setup {
namespace {

using quant::Dynamic;
using quant::Strategy;

/// The number that a checkpoint stores for all activations of a linear.
double stored_number(const checkpoint::Checkpoint& checkpoint, const std::string& name) {
  if (!checkpoint.contains(name))
    throw CheckpointError(
        "[eval.activations] '{}' is missing, which the scheme of its module needs; compress the model again", name);
  const at::Tensor tensor = checkpoint.tensor(name);
  const double number = tensor.numel() == 1 ? tensor.to(at::kDouble).item<double>() : std::nan("");
  if (!std::isfinite(number)) throw CheckpointError("[eval.activations] '{}' is not one finite number", name);
  return number;
}

double stored_scale(const checkpoint::Checkpoint& checkpoint, const std::string& name) {
  const double scale = stored_number(checkpoint, name);
  if (scale <= 0) throw CheckpointError("[eval.activations] '{}' is {}, but scales are positive", name, scale);
  return scale;
}

std::int64_t group_size(const quant::QuantizationArgs& args, const std::string& module, std::int64_t features) {
  const std::int64_t size = args.group_size.value_or(0);
  if (size < 1 || features % size != 0)
    throw CheckpointError(
        "[eval.activations] {}: groups of {} do not divide its {} inputs; leave --quantize-activations out", module,
        size, features);
  return size;
}

graph::RoundValues rounding_of(const quant::QuantizationArgs& args, const std::string& module, std::int64_t features,
                               const checkpoint::Checkpoint& checkpoint) {
  graph::RoundValues rounding;
  rounding.bits = args.num_bits, rounding.floats = args.type == quant::NumberType::kFloat;
  rounding.symmetric = args.symmetric;
  switch (args.strategy) {
    case Strategy::kTensor:
      if (args.dynamic != Dynamic::kFalse) break;
      rounding.scale = stored_scale(checkpoint, module + ".input_scale");
      if (!args.symmetric) rounding.zero_point = stored_number(checkpoint, module + ".input_zero_point");
      return rounding;
    case Strategy::kToken:
      rounding.run = features;
      return rounding;
    case Strategy::kTensorGroup:
      rounding.global_scale = stored_scale(checkpoint, module + ".input_global_scale");
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
      if (const auto rounding = rounding_before(node)) {
        kept.inputs[0] = rounded(result, node, *rounding);
        ++count;
      }
      place_[node.output] = add(result, std::move(kept), graph_.values[node.output]);
    }
    result.output = place_[graph_.output];
    graph::lint(result);
    return count;
  }

 private:
  std::optional<graph::RoundValues> rounding_before(const graph::Node& node) const {
    const auto* linear = std::get_if<graph::Linear>(&node.operation);
    if (linear == nullptr) return std::nullopt;
    const auto found = opened_.compressed.find(linear->weight);
    if (found == opened_.compressed.end() || !found->second.input_activations) return std::nullopt;
    return rounding_of(*found->second.input_activations, parent_name(linear->weight), linear->in_features,
                       *opened_.checkpoint);
  }

  /// The input of `node` rounded: by an earlier node if one does the same.
  graph::ValueId rounded(graph::Graph& result, const graph::Node& node, const graph::RoundValues& rounding) {
    const graph::ValueId input = place_[node.inputs[0]];
    for (const graph::NodeId earlier : roundings_) {
      const graph::Node& own = result.nodes[earlier];
      if (own.inputs[0] == input && std::get<graph::RoundValues>(own.operation) == rounding) return own.output;
    }
    roundings_.push_back(static_cast<graph::NodeId>(result.nodes.size()));
    return add(result, {rounding, {input}, -1, node.module}, graph_.values[node.inputs[0]]);
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
  for (const auto& [weight, scheme] : opened.compressed)
    if (scheme.output_activations)
      throw CheckpointError(
          "[eval.activations] {}: quantized outputs cannot be computed; leave --quantize-activations out",
          parent_name(weight));
  graph::Graph rounded;
  const std::size_t count = Rounding(opened).apply(rounded);
  opened.traced.graph = std::move(rounded);
  return count;
}

}  // namespace layerpress::setup
