#include "layerpress/run/evaluation/model_head.h"

#include <algorithm>
#include <variant>

#include "layerpress/execution/node_execution.h"

namespace layerpress {
namespace {

/// Whether a node's result for a token depends on nothing but its input for the same token.
bool treats_tokens_alone(const graph::Operation& operation) {
  if (const auto* aten = std::get_if<graph::Aten>(&operation))
    return aten->mixes.empty() && aten->program.find("\"token_ids\"") == std::string::npos &&
           aten->program.find("\"positions\"") == std::string::npos;
  return std::holds_alternative<graph::Linear>(operation) || std::holds_alternative<graph::SoftCap>(operation) ||
         std::holds_alternative<graph::Scale>(operation) || std::holds_alternative<graph::Activation>(operation);
}

}  // namespace

ModelHead::ModelHead(const graph::Graph& graph) : hidden_(graph.output), output_(graph.output) {
  std::vector<graph::NodeId> nodes;
  for (graph::ValueId value = graph.output; !graph.is_input(value);) {
    const graph::NodeId n = graph.values[value].producer;
    const graph::Node& node = graph.nodes[n];
    if (!treats_tokens_alone(node.operation) || node.inputs.size() != 1) return;
    nodes.push_back(n);
    value = node.inputs[0];
    if (!std::holds_alternative<graph::Linear>(node.operation)) continue;
    hidden_ = value;
    stage_ = {.wanted = {}, .nodes = {nodes.rbegin(), nodes.rend()}, .inputs = {hidden_}, .keeps = {output_}};
    return;
  }
}

std::uint64_t ModelHead::workspace_bytes(const graph::Graph& graph, std::int64_t tokens,
                                         const residency::Placement& placement, int threads) const {
  execution::Batch batch;
  batch.offsets.push_back(tokens);
  std::uint64_t most = 0;
  for (const execution::FusedNode& node : execution::fused_nodes(graph, stage_, placement))
    most = std::max(most, execution::node_workspace_bytes(graph, node, batch, placement, threads));
  return most;
}

at::Tensor ModelHead::logits(const execution::RunContext& run, const residency::Onload& parameters,
                             const at::Tensor& token_ids, const at::Tensor& hidden) const {
  if (stage_.nodes.empty()) return hidden;
  at::Tensor logits;
  const execution::StageValues values{.get = [&](graph::ValueId) { return hidden; },
                                      .put = [&](graph::ValueId, at::Tensor made) { logits = std::move(made); }};
  const execution::Batch batch{.token_ids = token_ids, .offsets = {0, token_ids.size(0)}, .images = {}};
  execution::run_stage(run, stage_, parameters, batch, values);
  return logits;
}

}  // namespace layerpress
