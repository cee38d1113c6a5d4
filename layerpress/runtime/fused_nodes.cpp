#include "layerpress/runtime/fused_nodes.h"

#include <algorithm>
#include <unordered_map>

#include "layerpress/kernels/linear.h"

namespace layerpress::runtime {
namespace {

/// Nodes of a stage by what they give, and how often that is read or wanted there.
class StageUses {
 public:
  StageUses(const graph::Graph& graph, const graph::Stage& stage) : graph_(graph) {
    for (const graph::NodeId n : stage.nodes) {
      producer_[graph.nodes[n].output] = n;
      for (const graph::ValueId input : graph.nodes[n].inputs) ++uses_[input];
    }
    for (const graph::ValueId value : stage.keeps) ++uses_[value];
    for (const graph::ValueId value : stage.wanted) ++uses_[value];
  }

  /// The linear without bias that gives `value` to one reader alone, or kNone.
  graph::NodeId sole_linear(graph::ValueId value) const {
    const auto found = producer_.find(value);
    if (found == producer_.end() || uses_.at(value) != 1) return FusedNode::kNone;
    const auto* linear = std::get_if<graph::Linear>(&graph_.nodes[found->second].operation);
    return linear != nullptr && linear->bias.empty() ? found->second : FusedNode::kNone;
  }

 private:
  const graph::Graph& graph_;
  std::unordered_map<graph::ValueId, graph::NodeId> producer_;
  std::unordered_map<graph::ValueId, int> uses_;
};

}  // namespace

std::vector<FusedNode> fused_nodes(const graph::Graph& graph, const graph::Stage& stage, const Placement& placement) {
  const StageUses uses(graph, stage);
  std::vector<FusedNode> nodes;
  std::vector<bool> absorbed(graph.nodes.size(), false);
  for (const graph::NodeId n : stage.nodes) {
    FusedNode& own = nodes.emplace_back();
    own.node = n;
    own.inputs = graph.nodes[n].inputs;
    const auto* gated = std::get_if<graph::GatedActivation>(&graph.nodes[n].operation);
    if (gated != nullptr && placement.device.is_cpu()) {
      const graph::NodeId gate = uses.sole_linear(own.inputs[0]), up = uses.sole_linear(own.inputs[1]);
      if (gate != FusedNode::kNone && up != FusedNode::kNone && graph.nodes[gate].inputs == graph.nodes[up].inputs &&
          kernels::fuses_gated_linear(gated->function, std::get<graph::Linear>(graph.nodes[gate].operation).in_features,
                                      placement.dtype)) {
        own = {n, gate, up, graph.nodes[gate].inputs};
        absorbed[gate] = absorbed[up] = true;
      }
    }
    std::erase_if(own.inputs, [&](graph::ValueId input) { return graph.is_input(input); });
  }
  std::erase_if(nodes, [&](const FusedNode& node) { return absorbed[node.node]; });
  return nodes;
}

}  // namespace layerpress::runtime
