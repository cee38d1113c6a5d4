#include "layerpress/execution/fused_nodes.h"

#include <algorithm>
#include <unordered_map>
#include <variant>

#include "layerpress/kernels/layers/linear.h"

namespace layerpress::execution {
namespace {

/// Finds nodes of a stage that can be computed together.
class Fusion {
 public:
  Fusion(const graph::Graph& graph, const graph::Stage& stage, const residency::Placement& placement)
      : graph_(graph), placement_(placement) {
    for (const graph::NodeId n : stage.nodes) {
      producer_[graph.nodes[n].output] = n;
      for (const graph::ValueId input : graph.nodes[n].inputs) ++uses_[input];
    }
    for (const graph::ValueId value : stage.keeps) ++uses_[value];
    for (const graph::ValueId value : stage.wanted) ++uses_[value];
  }

  FusedNode fused(graph::NodeId n) const {
    FusedNode own;
    own.node = n;
    own.inputs = graph_.nodes[n].inputs;
    if (std::holds_alternative<graph::GatedActivation>(graph_.nodes[n].operation)) {
      if (has_kernel(n)) fuse_linears(n, own);
    } else if (std::holds_alternative<graph::TakeRouted>(graph_.nodes[n].operation)) {
      const graph::NodeId activation = sole_producer<graph::GatedActivation>(own.inputs[0]);
      if (activation != FusedNode::kNone) fuse_linears(activation, own);
    }
    std::erase_if(own.inputs, [&](graph::ValueId input) { return graph_.is_input(input); });
    return own;
  }

 private:
  /// The node of the given kind that produces `value` for a single reader, or kNone.
  template <typename Operation>
  graph::NodeId sole_producer(graph::ValueId value) const {
    const auto found = producer_.find(value);
    if (found == producer_.end() || uses_.at(value) != 1) return FusedNode::kNone;
    return std::holds_alternative<Operation>(graph_.nodes[found->second].operation) ? found->second : FusedNode::kNone;
  }

  graph::NodeId sole_linear(graph::ValueId value) const {
    const graph::NodeId n = sole_producer<graph::Linear>(value);
    return n == FusedNode::kNone || !std::get<graph::Linear>(graph_.nodes[n].operation).bias.empty() ? FusedNode::kNone
                                                                                                     : n;
  }

  bool has_kernel(graph::NodeId activation) const {
    const graph::NodeId gate = sole_linear(graph_.nodes[activation].inputs[0]);
    return gate != FusedNode::kNone && placement_.device.is_cpu() &&
           kernels::fuses_gated_linear(std::get<graph::GatedActivation>(graph_.nodes[activation].operation).function,
                                       placement_.dtype);
  }

  /// Fuses an activation's linears if they read one input and no other node reads their outputs. `own` then begins with
  /// that input.
  void fuse_linears(graph::NodeId activation, FusedNode& own) const {
    const std::vector<graph::ValueId>& inputs = graph_.nodes[activation].inputs;
    const graph::NodeId gate = sole_linear(inputs[0]), up = sole_linear(inputs[1]);
    if (gate == FusedNode::kNone || up == FusedNode::kNone || graph_.nodes[gate].inputs != graph_.nodes[up].inputs)
      return;
    own.gate = gate;
    own.up = up;
    own.activation = activation;
    if (activation == own.node)
      own.inputs = graph_.nodes[gate].inputs;
    else
      own.inputs[0] = graph_.nodes[gate].inputs[0];
  }

  const graph::Graph& graph_;
  const residency::Placement& placement_;
  std::unordered_map<graph::ValueId, graph::NodeId> producer_;
  std::unordered_map<graph::ValueId, int> uses_;
};

}  // namespace

std::vector<FusedNode> fused_nodes(const graph::Graph& graph, const graph::Stage& stage,
                                   const residency::Placement& placement) {
  const Fusion fusion(graph, stage, placement);
  std::vector<FusedNode> nodes;
  std::vector<bool> absorbed(graph.nodes.size(), false);
  for (const graph::NodeId n : stage.nodes) {
    const FusedNode& own = nodes.emplace_back(fusion.fused(n));
    if (!own.fuses()) continue;
    absorbed[own.gate] = absorbed[own.up] = true;
    if (own.activation != n) absorbed[own.activation] = true;
  }
  std::erase_if(nodes, [&](const FusedNode& node) { return absorbed[node.node]; });
  return nodes;
}

}  // namespace layerpress::execution
