#include "layerpress/setup/assignment/rounded_inputs.h"

#include <ATen/ATen.h>

#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <variant>
#include <vector>

#include "layerpress/base/text.h"
#include "layerpress/graph/facts/attention_heads.h"
#include "layerpress/graph/facts/rounded_inputs.h"
#include "layerpress/graph/weight_matrix.h"
#include "layerpress/quant/weight_numbers.h"

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
      rounding.power_scales = quant::has_power_scales(args);
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

/// The roundings of an opened model whose schemes ask for them.
class ServedRoundings {
 public:
  explicit ServedRoundings(const OpenedModel& opened) : opened_(opened), graph_(opened.traced.graph) {}

  std::vector<graph::RoundedInput> before(const graph::Node& node) const {
    if (const auto heads = graph::cached_attention(node.operation)) return before(node, *heads);
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

 private:
  std::vector<graph::RoundedInput> before(const graph::Node& node, const graph::AttentionHeads& heads) const {
    const std::string& module = graph_.module_name(node);
    const auto found = opened_.quantized_attentions.find(module);
    if (found == opened_.quantized_attentions.end()) return {};
    const auto& [args, group] = found->second;
    const FindTensor find = [&](const std::string& name) {
      return opened_.stored->contains(name) ? std::optional(opened_.stored->tensor(name)) : std::nullopt;
    };
    std::vector<graph::RoundedInput> roundings;
    if (group) roundings.push_back({0, rounding_of_heads(args, module + ".q", heads.heads, find)});
    roundings.push_back({1, rounding_of_heads(args, module + ".k", heads.kv_heads, find)});
    roundings.push_back({2, rounding_of_heads(args, module + ".v", heads.kv_heads, find)});
    return roundings;
  }

  const OpenedModel& opened_;
  const graph::Graph& graph_;
};

/// Nothing for a scheme whose inputs are not rounded, or whose scales are not found in the values.
std::optional<graph::RoundValues> calibrated_rounding(const quant::QuantizationScheme& scheme, std::int64_t features) {
  if (!scheme.input_activations) return std::nullopt;
  const quant::QuantizationArgs& args = *scheme.input_activations;
  if (args.dynamic == Dynamic::kFalse || args.num_bits >= 8) return std::nullopt;
  graph::RoundValues rounding = rounding_to(args);
  rounding.run = args.strategy == Strategy::kToken ? features : args.group_size.value_or(0);
  rounding.power_scales = quant::has_power_scales(args);
  if (rounding.run < 1 || features % rounding.run != 0) return std::nullopt;
  return rounding;
}

}  // namespace

std::optional<std::size_t> round_inputs(OpenedModel& opened) {
  for (const auto& [weight, stored] : opened.quantized)
    if (stored.scheme.output_activations)
      throw CheckpointError(
          "[eval.activations] {}: quantized outputs cannot be computed; leave --quantize-activations out",
          parent_name(weight));
  std::optional<std::size_t> linears;
  const ServedRoundings roundings(opened);
  opened.traced.graph = graph::with_rounded_inputs(opened.traced.graph, [&](graph::NodeId n) {
    const graph::Node& node = opened.traced.graph.nodes[n];
    std::vector<graph::RoundedInput> found = roundings.before(node);
    if (!found.empty()) linears = linears.value_or(0) + (graph::is_linear(node.operation) ? 1 : 0);
    return found;
  });
  return linears;
}

std::size_t round_calibrated_inputs(OpenedModel& model, const compression::Assignments& assignments) {
  std::map<graph::NodeId, graph::RoundValues> roundings;
  const compression::Quantizer* asking = nullptr;
  for (const auto& [n, assignment] : assignments.linears) {
    const auto* linear = std::get_if<graph::Linear>(&model.traced.graph.nodes[n].operation);
    if (linear == nullptr || assignment.encoding == nullptr || !assignment.encoding->rounds_inputs()) continue;
    asking = assignment.encoding;
    if (const auto rounding = calibrated_rounding(*assignment.scheme, linear->in_features))
      roundings.emplace(n, *rounding);
  }
  if (asking == nullptr) return 0;
  if (roundings.empty())
    throw RecipeError(
        "[recipe.check] {}: rounded_inputs needs a scheme that gives inputs less than 8 bits with dynamic scales, such "
        "as NVFP4 or MXFP4; leave it out",
        asking->type());
  model.traced.graph = graph::with_rounded_inputs(model.traced.graph, [&](graph::NodeId n) {
    std::vector<graph::RoundedInput> found;
    if (const auto rounding = roundings.find(n); rounding != roundings.end()) found.push_back({0, rounding->second});
    return found;
  });
  return roundings.size();
}

}  // namespace layerpress::setup
