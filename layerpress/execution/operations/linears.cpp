#include <ATen/ATen.h>

#include <optional>

#include "layerpress/execution/operation_execution.h"
#include "layerpress/kernels/layers/linear.h"

namespace layerpress::execution {
namespace {

struct LinearFunctions {
  static at::Tensor execute(const graph::Embedding& op, const NodeRun& run) {
    return at::embedding(run.parameters.parameter(op.weight), run.context.token_ids());
  }

  static at::Tensor execute(const graph::Linear& op, const NodeRun& run) {
    const at::Tensor& weight = run.parameters.parameter(op.weight);
    std::optional<at::Tensor> bias;
    if (!op.bias.empty()) bias = run.parameters.parameter(op.bias);
    return kernels::linear(run.inputs[0], weight, bias);
  }
  static std::uint64_t workspace_bytes(const graph::Linear& op, const NodeShape& shape, const Workplace& place) {
    if (!place.placement.device.is_cpu()) return 0;
    const std::int64_t rows = shape.batch.rows(shape.graph.values[shape.node.inputs[0]].rows);
    return kernels::linear_workspace_bytes(rows, op.in_features, place.placement.dtype, place.threads);
  }
  static double flops(const graph::Linear& op, const NodeShape& shape) {
    return product_flops(expected_rows(shape.graph, shape.node.output, shape.batch), op.in_features, op.out_features);
  }
};

}  // namespace

FamilyExecution executions(graph::Linears family) { return executions_by<LinearFunctions>(family); }

}  // namespace layerpress::execution
