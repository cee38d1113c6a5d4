#include "layerpress/execution/node_execution.h"

#include <ATen/ATen.h>

#include <optional>
#include <type_traits>
#include <utility>
#include <variant>

#include "layerpress/execution/expert_execution.h"
#include "layerpress/execution/vision_execution.h"
#include "layerpress/graph/expert_inputs.h"
#include "layerpress/kernels/linear.h"
#include "layerpress/kernels/transformer.h"

namespace layerpress::execution {
namespace {

kernels::AttentionShape shape_of(const graph::Attention& op) {
  return {op.heads, op.kv_heads, op.head_dim, op.scale, op.window, op.soft_cap, op.value_head_dim};
}

/// One implementation per kind of node.
struct Execute {
  const graph::Node& node;
  std::vector<at::Tensor>& inputs;
  const residency::Onload& parameters;
  BatchContext& context;

  at::Tensor operator()(const graph::Embedding& op) const {
    return at::embedding(parameters.parameter(op.weight), context.token_ids());
  }
  at::Tensor operator()(const graph::Linear& op) const {
    const at::Tensor& weight = parameters.parameter(op.weight);
    std::optional<at::Tensor> bias;
    if (!op.bias.empty()) bias = parameters.parameter(op.bias);
    return kernels::linear(inputs[0], weight, bias);
  }
  at::Tensor operator()(const graph::RmsNorm& op) const {
    return kernels::rms_norm(inputs[0], parameters.parameter(op.weight), op.epsilon,
                             {op.weight_offset, op.rounded_once});
  }
  at::Tensor operator()(const graph::LayerNorm& op) const {
    const at::Tensor bias = op.bias.empty() ? at::Tensor() : parameters.parameter(op.bias);
    const at::Tensor runs = inputs[0].reshape({-1, op.size});
    return at::layer_norm(runs, {op.size}, parameters.parameter(op.weight), bias, op.epsilon).view(inputs[0].sizes());
  }
  at::Tensor operator()(const graph::Rotary& op) const {
    const BatchContext::Angles& angles = context.angles(op.table);
    return kernels::rotary(inputs[0], angles.cosine, angles.sine, angles.rows,
                           {op.head_dim, op.offset, op.interleaved});
  }
  at::Tensor operator()(const graph::Attention& op) const {
    return kernels::attention(inputs[0], inputs[1], inputs[2], context.batch().offsets, shape_of(op));
  }
  at::Tensor operator()(const graph::GatedActivation& op) const {
    return kernels::gated_activation(op.function, inputs[0], inputs[1]);
  }
  at::Tensor operator()(const graph::Add&) const { return inputs[0] + inputs[1]; }
  at::Tensor operator()(const graph::Gate&) const { return inputs[0].sigmoid() * inputs[1]; }
  at::Tensor operator()(const graph::Scale& op) const {
    const at::ScalarType dtype = op.rounded_factor ? inputs[0].scalar_type() : at::kDouble;
    return inputs[0] * at::scalar_tensor(op.factor, dtype).item<double>();
  }
  at::Tensor operator()(const graph::SoftCap& op) const { return (inputs[0] / op.cap).tanh_().mul_(op.cap); }
  at::Tensor operator()(const graph::Slice& op) const {
    const std::int64_t rows = inputs[0].size(0), runs = inputs[0].size(1) / op.size;
    return inputs[0].view({rows, runs, op.size}).slice(-1, op.begin, op.end).flatten(1).contiguous();
  }
  at::Tensor operator()(const graph::JoinHeads& op) const {
    const at::Tensor own = inputs[0].view({-1, op.heads, op.first});
    const at::Tensor shared = inputs[1].unsqueeze(1).expand({-1, op.heads, op.second});
    return at::cat({own, shared}, -1).flatten(1);
  }
  at::Tensor operator()(const graph::Route& op) const {
    return route(op, inputs[0], op.bias.empty() ? at::Tensor() : parameters.original(op.bias));
  }
  at::Tensor operator()(const graph::SelectTokens& op) const {
    return select_tokens(op, inputs[0], inputs[1], inputs[2], context.least_score(node.inputs[2], op.expert));
  }
  at::Tensor operator()(const graph::TakeRouted& op) const { return take_rows(inputs[0], routed_places(op)); }
  at::Tensor operator()(const graph::Expert& op) const { return add_expert(op, std::move(inputs), parameters); }
  template <typename Vision>
  requires std::is_invocable_v<const VisionExecution&, const Vision&> at::Tensor operator()(const Vision& op) const {
    return VisionExecution{inputs, parameters, context}(op);
  }

  /// Indices among the rows of the value they are taken from.
  at::Tensor routed_places(const graph::TakeRouted& op) const {
    const bool of_selected = context.graph().values[node.inputs[0]].rows == graph::Rows::kSelected;
    return execution::routed_places(op, inputs[1], inputs[2], of_selected,
                                    context.least_score(node.inputs[2], op.expert));
  }
};

}  // namespace

at::Tensor execute_node(const FusedNode& fused, std::vector<at::Tensor> inputs, const residency::Onload& parameters,
                        BatchContext& context) {
  const graph::Node& node = context.graph().nodes[fused.node];
  const Execute execute{node, inputs, parameters, context};
  if (!fused.fuses()) return std::visit(execute, node.operation);
  const auto weight_of = [&](graph::NodeId linear) {
    return parameters.parameter(std::get<graph::Linear>(context.graph().nodes[linear].operation).weight);
  };
  const std::string& function =
      std::get<graph::GatedActivation>(context.graph().nodes[fused.activation].operation).function;
  if (const auto* taken = std::get_if<graph::TakeRouted>(&node.operation))
    return gated_rows(function, inputs[0], execute.routed_places(*taken), weight_of(fused.gate), weight_of(fused.up));
  return kernels::gated_linear(function, inputs[0], weight_of(fused.gate), weight_of(fused.up));
}

std::uint64_t node_workspace_bytes(const graph::Graph& graph, const FusedNode& fused, const Batch& batch,
                                   const residency::Placement& placement, int threads) {
  if (fused.fuses() && std::holds_alternative<graph::TakeRouted>(graph.nodes[fused.node].operation)) {
    const auto& gate = std::get<graph::Linear>(graph.nodes[fused.gate].operation);
    return route_workspace_bytes(graph.values[fused.inputs[2]].features, batch.tokens()) +
           gated_rows_workspace_bytes(gate.in_features, gate.out_features, batch.tokens(), placement.dtype, threads);
  }
  const graph::Node& node = graph.nodes[fused.fuses() ? fused.gate : fused.node];
  if (const auto* linear = std::get_if<graph::Linear>(&node.operation))
    return !placement.device.is_cpu() ? 0
                                      : kernels::linear_workspace_bytes(batch.rows(graph.values[node.inputs[0]].rows),
                                                                        linear->in_features, placement.dtype, threads);
  if (const auto* attention = std::get_if<graph::Attention>(&node.operation))
    return kernels::attention_workspace_bytes(batch.offsets, shape_of(*attention), placement.device, placement.dtype,
                                              threads);
  if (const auto* expert = std::get_if<graph::Expert>(&node.operation))
    return expert_workspace_bytes(*expert, batch.tokens(), placement.dtype, threads);
  if (const auto* route = std::get_if<graph::Route>(&node.operation))
    return route_workspace_bytes(route->experts, batch.tokens());
  if (const auto* selection = std::get_if<graph::SelectTokens>(&node.operation))
    return route_workspace_bytes(selection->experts, batch.tokens());
  if (const auto* taken = std::get_if<graph::TakeRouted>(&node.operation))
    return route_workspace_bytes(taken->experts, batch.tokens());
  if (const auto* rotary = std::get_if<graph::Rotary>(&node.operation))  // cosines and sines, once per position
    return static_cast<std::uint64_t>(batch.tokens()) * (static_cast<std::uint64_t>(rotary->head_dim) * 8 + 8);
  return vision_workspace_bytes(node, batch, placement);
}

namespace {

/// An expert's share of the tokens if all experts get equally many.
double expert_share(const graph::Graph& graph, graph::ValueId routing) {
  const auto* route = std::get_if<graph::Route>(&graph.nodes[graph.values[routing].producer].operation);
  return route == nullptr ? 1 : static_cast<double>(route->top_k) / static_cast<double>(route->experts);
}

}  // namespace

double expected_rows(const graph::Graph& graph, graph::ValueId value, const Batch& batch) {
  const auto rows = static_cast<double>(batch.rows(graph.values[value].rows));
  if (graph.values[value].rows != graph::Rows::kSelected) return rows;
  return rows * expert_share(graph, graph::selection_of(graph, value).inputs[2]);
}

double node_flops(const graph::Graph& graph, const FusedNode& fused, const Batch& batch) {
  const graph::Node& node = graph.nodes[fused.node];
  const auto product = [](double rows, std::int64_t inner, std::int64_t columns) {
    return 2.0 * rows * static_cast<double>(inner) * static_cast<double>(columns);
  };
  if (fused.fuses()) {
    const auto& gate = std::get<graph::Linear>(graph.nodes[fused.gate].operation);
    return product(expected_rows(graph, node.output, batch), gate.in_features, 2 * gate.out_features);
  }
  if (const auto* linear = std::get_if<graph::Linear>(&node.operation))
    return product(expected_rows(graph, node.output, batch), linear->in_features, linear->out_features);
  if (const auto* expert = std::get_if<graph::Expert>(&node.operation))
    return product(expected_rows(graph, node.inputs[0], batch), expert->intermediate, expert->features);
  if (const auto* attention = std::get_if<graph::Attention>(&node.operation)) {
    double pairs = 0;  // visible (query, key) pairs
    for (std::size_t i = 0; i + 1 < batch.offsets.size(); ++i) {
      const auto length = static_cast<double>(batch.offsets[i + 1] - batch.offsets[i]);
      const auto window = static_cast<double>(attention->window);
      pairs += attention->window > 0 && window < length ? window * length - window * (window - 1) / 2
                                                        : length * (length + 1) / 2;
    }
    return 2.0 * pairs * static_cast<double>(attention->heads * (attention->head_dim + attention->value_dim()));
  }
  return vision_flops(node, batch);
}

}  // namespace layerpress::execution
