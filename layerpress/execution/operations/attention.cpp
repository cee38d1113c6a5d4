#include <ATen/ATen.h>

#include <algorithm>

#include "layerpress/execution/operation_execution.h"
#include "layerpress/kernels/layers/transformer.h"

namespace layerpress::execution {
namespace {

kernels::AttentionShape shape_of(const graph::Attention& op) {
  return {op.heads, op.kv_heads, op.head_dim, op.scale, op.window, op.soft_cap, op.value_head_dim};
}

struct AttentionFunctions {
  static at::Tensor execute(const graph::Rotary& op, const NodeRun& run) {
    const BatchContext::Angles& angles = run.context.angles(op.table);
    return kernels::rotary(run.inputs[0], angles.cosine, angles.sine, angles.rows,
                           {op.head_dim, op.offset, op.interleaved});
  }
  /// Cosines and sines while they are made, and each token's place among them.
  static std::uint64_t workspace_bytes(const graph::Rotary& op, const NodeShape& shape, const Workplace&) {
    return static_cast<std::uint64_t>(shape.batch.tokens()) * (static_cast<std::uint64_t>(op.head_dim) * 8 + 8);
  }

  static at::Tensor execute(const graph::Attention& op, const NodeRun& run) {
    const Batch& batch = run.context.batch();
    at::Tensor mixed = kernels::attention(run.inputs[0], run.inputs[1], run.inputs[2], batch.offsets, shape_of(op));
    for (std::size_t i = 0; i < batch.embeddings.size() && op.mutual; ++i)
      for (const auto& [first, last] : batch.embeddings[i].spans) {
        const std::int64_t sample = batch.offsets[i];
        kernels::attend_within_span(mixed, run.inputs[0], run.inputs[1], run.inputs[2],
                                    {sample, sample + first, sample + last}, shape_of(op));
      }
    return mixed;
  }
  static std::uint64_t workspace_bytes(const graph::Attention& op, const NodeShape& shape, const Workplace& place) {
    const std::vector<std::int64_t>& offsets = shape.batch.offsets;
    const std::uint64_t causal = kernels::attention_workspace_bytes(offsets, shape_of(op), place.placement.device,
                                                                    place.placement.dtype, place.threads);
    return op.mutual ? std::max(causal, kernels::span_workspace_bytes(kernels::longest_sample(offsets), shape_of(op)))
                     : causal;
  }
  static constexpr const char* phase(const graph::Attention*) { return "attention"; }
  /// Causal: about half of all pairs.
  static double flops(const graph::Attention& op, const NodeShape& shape) {
    double pairs = 0;  // visible (query, key) pairs
    for (std::size_t i = 0; i + 1 < shape.batch.offsets.size(); ++i) {
      const auto length = static_cast<double>(shape.batch.offsets[i + 1] - shape.batch.offsets[i]);
      const auto window = static_cast<double>(op.window);
      pairs +=
          op.window > 0 && window < length ? window * length - window * (window - 1) / 2 : length * (length + 1) / 2;
    }
    return 2.0 * pairs * static_cast<double>(op.heads * (op.head_dim + op.value_dim()));
  }
};

}  // namespace

FamilyExecution executions(graph::Attentions family) { return executions_by<AttentionFunctions>(family); }

}  // namespace layerpress::execution
