#include <ATen/ATen.h>

#include "layerpress/base/error.h"
#include "layerpress/execution/operation_execution.h"
#include "layerpress/kernels/layers/transformer.h"

namespace layerpress::execution {
namespace {

struct ElementwiseFunctions {
  static at::Tensor execute(const graph::GatedActivation& op, const NodeRun& run) {
    return kernels::gated_activation(op.function, run.inputs[0], run.inputs[1]);
  }

  static at::Tensor execute(const graph::Activation& op, const NodeRun& run) {
    if (op.function == "gelu") return at::gelu(run.inputs[0]);
    if (op.function == "gelu_tanh") return at::gelu(run.inputs[0], "tanh");
    if (op.function == "silu") return at::silu(run.inputs[0]);
    throw InternalError("[execution.activation] unknown function '{}'", op.function);
  }

  static at::Tensor execute(const graph::Add&, const NodeRun& run) { return run.inputs[0] + run.inputs[1]; }

  static at::Tensor execute(const graph::Gate&, const NodeRun& run) { return run.inputs[0].sigmoid() * run.inputs[1]; }

  static at::Tensor execute(const graph::GatedAdd& op, const NodeRun& run) {
    return run.inputs[0] + run.parameters.parameter(op.gate).tanh() * run.inputs[1];
  }

  static at::Tensor execute(const graph::Scale& op, const NodeRun& run) {
    const at::ScalarType dtype = op.rounded_factor ? run.inputs[0].scalar_type() : at::kDouble;
    return run.inputs[0] * at::scalar_tensor(op.factor, dtype).item<double>();
  }

  static at::Tensor execute(const graph::SoftCap& op, const NodeRun& run) {
    return (run.inputs[0] / op.cap).tanh_().mul_(op.cap);
  }
};

}  // namespace

FamilyExecution executions(graph::Elementwise family) { return executions_by<ElementwiseFunctions>(family); }

}  // namespace layerpress::execution
