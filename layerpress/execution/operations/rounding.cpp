#include <ATen/ATen.h>

#include "layerpress/execution/operation_execution.h"
#include "layerpress/kernels/scales/value_rounding.h"

namespace layerpress::execution {
namespace {

struct RoundingFunctions {
  static at::Tensor execute(const graph::RoundValues& op, const NodeRun& run) {
    const kernels::ElementType floats = op.bits == 8 ? kernels::kE4m3 : kernels::kE2m1;
    kernels::ValueRounding rounding;
    rounding.rule = {op.floats ? floats : kernels::integers(static_cast<int>(op.bits)), op.symmetric};
    rounding.run = op.run;
    for (const double scale : op.scales) rounding.given.push_back(static_cast<float>(scale));
    for (const double zero_point : op.zero_points) rounding.zero_points.push_back(static_cast<float>(zero_point));
    if (op.power_scales) rounding.scales.type = kernels::ScaleType::kE8m0;
    if (op.global_scale != 0)
      rounding.scales = {kernels::ScaleType::kE4m3, kernels::ScaleType::kFloat, static_cast<float>(op.global_scale)};
    return kernels::rounded_values(run.inputs[0], rounding);
  }
  static std::uint64_t workspace_bytes(const graph::RoundValues&, const NodeShape& shape, const Workplace&) {
    const graph::Value& input = shape.graph.values[shape.node.inputs[0]];
    return kernels::rounding_workspace_bytes(shape.batch.rows(input.rows), input.features);
  }
};

}  // namespace

FamilyExecution executions(graph::Roundings family) { return executions_by<RoundingFunctions>(family); }

}  // namespace layerpress::execution
