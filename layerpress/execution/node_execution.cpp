#include "layerpress/execution/node_execution.h"

#include <variant>

#include "layerpress/execution/operation_execution.h"
#include "layerpress/execution/operations/experts.h"
#include "layerpress/kernels/layers/linear.h"

namespace layerpress::execution {
namespace {

const graph::Linear& linear_at(const graph::Graph& graph, graph::NodeId n) {
  return std::get<graph::Linear>(graph.nodes[n].operation);
}

at::Tensor execute_fused(const FusedNode& fused, const NodeRun& run) {
  const graph::Graph& graph = run.context.graph();
  const at::Tensor gate = run.parameters.parameter(linear_at(graph, fused.gate).weight);
  const at::Tensor up = run.parameters.parameter(linear_at(graph, fused.up).weight);
  const auto& activation = std::get<graph::GatedActivation>(graph.nodes[fused.activation].operation);
  if (const auto* taken = std::get_if<graph::TakeRouted>(&run.node.operation))
    return gated_rows(activation.function, run.inputs[0], routed_places(*taken, run), gate, up);
  return kernels::gated_linear(activation.function, run.inputs[0], gate, up);
}

}  // namespace

at::Tensor execute_node(const FusedNode& fused, std::vector<at::Tensor> inputs, const residency::Onload& parameters,
                        BatchContext& context) {
  const graph::Node& node = context.graph().nodes[fused.node];
  const NodeRun run{node, inputs, parameters, context};
  return fused.fuses() ? execute_fused(fused, run) : execution_of(node.operation).execute(node.operation, run);
}

std::uint64_t node_workspace_bytes(const graph::Graph& graph, const FusedNode& fused, const Batch& batch,
                                   const residency::Placement& placement, int threads) {
  if (fused.fuses() && std::holds_alternative<graph::TakeRouted>(graph.nodes[fused.node].operation)) {
    const graph::Linear& gate = linear_at(graph, fused.gate);
    return route_workspace_bytes(graph.values[fused.inputs[2]].features, batch.tokens()) +
           gated_rows_workspace_bytes(gate.in_features, gate.out_features, batch.tokens(), placement.dtype, threads);
  }
  const graph::Node& node = graph.nodes[fused.fuses() ? fused.gate : fused.node];
  return execution_of(node.operation).workspace_bytes(node.operation, {graph, node, batch}, {placement, threads});
}

double node_flops(const graph::Graph& graph, const FusedNode& fused, const Batch& batch) {
  const graph::Node& node = graph.nodes[fused.node];
  if (!fused.fuses()) return execution_of(node.operation).flops(node.operation, {graph, node, batch});
  const graph::Linear& gate = linear_at(graph, fused.gate);
  return product_flops(expected_rows(graph, node.output, batch), gate.in_features, 2 * gate.out_features);
}

const char* node_phase(const graph::Graph& graph, const FusedNode& node) {
  return execution_of(graph.nodes[node.node].operation).phase;
}

double stored_rows(const graph::Graph& graph, graph::ValueId value, const Batch& batch) {
  const graph::NodeId producer = graph.values[value].producer;
  if (producer < 0) return static_cast<double>(batch.rows(graph.values[value].rows));
  const graph::Node& node = graph.nodes[producer];
  return execution_of(node.operation).stored_rows(node.operation, {graph, node, batch});
}

}  // namespace layerpress::execution
