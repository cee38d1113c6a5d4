#include <ATen/ATen.h>

#include "layerpress/execution/operation_execution.h"
#include "layerpress/kernels/layers/transformer.h"

namespace layerpress::execution {
namespace {

struct NormFunctions {
  static at::Tensor execute(const graph::RmsNorm& op, const NodeRun& run) {
    return kernels::rms_norm(run.inputs[0], run.parameters.parameter(op.weight), op.epsilon,
                             {op.weight_offset, op.rounded_once});
  }

  static at::Tensor execute(const graph::LayerNorm& op, const NodeRun& run) {
    const at::Tensor bias = op.bias.empty() ? at::Tensor() : run.parameters.parameter(op.bias);
    const at::Tensor runs = run.inputs[0].reshape({-1, op.size});
    return at::layer_norm(runs, {op.size}, run.parameters.parameter(op.weight), bias, op.epsilon)
        .view(run.inputs[0].sizes());
  }
};

}  // namespace

FamilyExecution executions(graph::Norms family) { return executions_by<NormFunctions>(family); }

}  // namespace layerpress::execution
