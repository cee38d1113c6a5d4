#include "layerpress/runtime/node_execution.h"

#include <ATen/ATen.h>

#include "layerpress/kernels/transformer.h"

namespace layerpress::runtime {
namespace {

/// One implementation per kind of node.
struct Execute {
  const std::vector<at::Tensor>& inputs;
  const Onload& parameters;
  BatchContext& context;

  at::Tensor operator()(const graph::Embedding& op) const {
    return at::embedding(parameters.parameter(op.weight), context.token_ids());
  }
  at::Tensor operator()(const graph::Linear& op) const {
    const at::Tensor& weight = parameters.parameter(op.weight);
    if (op.bias.empty()) return at::linear(inputs[0], weight);
    return at::linear(inputs[0], weight, parameters.parameter(op.bias));
  }
  at::Tensor operator()(const graph::RmsNorm& op) const {
    return kernels::rms_norm(inputs[0], parameters.parameter(op.weight), op.epsilon);
  }
  at::Tensor operator()(const graph::Rotary& op) const {
    const BatchContext::Angles& angles = context.angles(op.table);
    return kernels::rotary(inputs[0], angles.cosine, angles.sine, angles.rows, op.head_dim);
  }
  at::Tensor operator()(const graph::Attention& op) const {
    return kernels::attention(inputs[0], inputs[1], inputs[2], context.batch().offsets,
                              {op.heads, op.kv_heads, op.head_dim, op.scale, op.window});
  }
  at::Tensor operator()(const graph::GatedActivation& op) const {
    return kernels::gated_activation(op.function, inputs[0], inputs[1]);
  }
  at::Tensor operator()(const graph::Add&) const { return inputs[0] + inputs[1]; }
};

}  // namespace

at::Tensor execute_node(const graph::Node& node, const std::vector<at::Tensor>& inputs, const Onload& parameters,
                        BatchContext& context) {
  return std::visit(Execute{inputs, parameters, context}, node.operation);
}

std::uint64_t node_workspace_bytes(const graph::Node& node, const Batch& batch, const Placement& placement,
                                   int threads) {
  if (const auto* attention = std::get_if<graph::Attention>(&node.operation)) {
    std::int64_t longest = 0;
    for (std::size_t i = 0; i + 1 < batch.offsets.size(); ++i)
      longest = std::max(longest, batch.offsets[i + 1] - batch.offsets[i]);
    return kernels::attention_workspace_bytes(
        longest, {attention->heads, attention->kv_heads, attention->head_dim, attention->scale, attention->window},
        placement.dtype, threads);
  }
  if (const auto* rotary = std::get_if<graph::Rotary>(&node.operation))  // cosines and sines, once per position
    return static_cast<std::uint64_t>(batch.tokens()) * (static_cast<std::uint64_t>(rotary->head_dim) * 8 + 8);
  return 0;
}

double node_flops(const graph::Node& node, const Batch& batch) {
  if (const auto* linear = std::get_if<graph::Linear>(&node.operation))
    return 2.0 * static_cast<double>(batch.tokens()) * static_cast<double>(linear->in_features) *
           static_cast<double>(linear->out_features);
  if (const auto* attention = std::get_if<graph::Attention>(&node.operation)) {
    double pairs = 0;  // (query, key) pairs that see each other
    for (std::size_t i = 0; i + 1 < batch.offsets.size(); ++i) {
      const auto length = static_cast<double>(batch.offsets[i + 1] - batch.offsets[i]);
      const auto window = static_cast<double>(attention->window);
      pairs += attention->window > 0 && window < length ? window * length - window * (window - 1) / 2
                                                        : length * (length + 1) / 2;
    }
    return 4.0 * pairs * static_cast<double>(attention->heads * attention->head_dim);
  }
  return 0;
}

}  // namespace layerpress::runtime
