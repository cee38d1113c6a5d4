#include <ATen/ATen.h>

#include "layerpress/execution/operation_execution.h"

namespace layerpress::execution {
namespace {

struct LayoutFunctions {
  static at::Tensor execute(const graph::Slice& op, const NodeRun& run) {
    const std::int64_t rows = run.inputs[0].size(0), runs = run.inputs[0].size(1) / op.size;
    return run.inputs[0].view({rows, runs, op.size}).slice(-1, op.begin, op.end).flatten(1).contiguous();
  }

  static at::Tensor execute(const graph::JoinHeads& op, const NodeRun& run) {
    const at::Tensor own = run.inputs[0].view({-1, op.heads, op.first});
    const at::Tensor shared = run.inputs[1].unsqueeze(1).expand({-1, op.heads, op.second});
    return at::cat({own, shared}, -1).flatten(1);
  }
};

}  // namespace

FamilyExecution executions(graph::Layouts family) { return executions_by<LayoutFunctions>(family); }

}  // namespace layerpress::execution
