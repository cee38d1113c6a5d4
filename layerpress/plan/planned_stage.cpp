#include "layerpress/plan/planned_stage.h"

#include <algorithm>
#include <set>
#include <vector>

#include "layerpress/execution/node_execution.h"

namespace layerpress::plan {
namespace {

/// How often each value is read.
std::map<graph::ValueId, int> readers_of(const std::vector<execution::FusedNode>& nodes, const graph::Stage& stage) {
  std::map<graph::ValueId, int> readers;
  for (const execution::FusedNode& node : nodes)
    for (const graph::ValueId input : node.inputs) ++readers[input];
  for (const graph::ValueId value : stage.keeps) ++readers[value];
  return readers;
}

}  // namespace

StageNeeds stage_needs(const PlannedSizes& sizes, const execution::Batch& batch, std::size_t index,
                       const graph::Stage& stage, const std::function<std::uint64_t(graph::ValueId)>& workspace_of) {
  const graph::Graph& graph = sizes.graph();
  const std::vector<execution::FusedNode> nodes = execution::fused_nodes(graph, stage, sizes.placement());
  std::map<graph::ValueId, int> readers = readers_of(nodes, stage);
  std::set<graph::ValueId> inside;  // values of the stage that are still read
  StageNeeds needs;
  for (const execution::FusedNode& fused : nodes) {
    const graph::Node& node = graph.nodes[fused.node];
    const bool is_kept = std::find(stage.keeps.begin(), stage.keeps.end(), node.output) != stage.keeps.end();
    const std::uint64_t output = is_kept ? sizes.kept_bytes(node.output, index) : sizes.value_bytes(node.output, index);
    const std::uint64_t workspace =
        execution::node_workspace_bytes(graph, fused, batch, sizes.placement(), sizes.threads());
    needs.most = std::max(needs.most, needs.frame + output + std::max(workspace, workspace_of(node.output)));
    const double flops = execution::node_flops(graph, fused, batch);
    needs.flops[execution::node_phase(graph, fused)] += flops;
    if (flops == 0) needs.forward_bytes += static_cast<double>(output);
    for (const graph::ValueId input : fused.inputs) {
      if (flops == 0) needs.forward_bytes += static_cast<double>(sizes.value_bytes(input, index));
      if (--readers[input] == 0 && inside.erase(input) != 0) needs.frame -= sizes.value_bytes(input, index);
    }
    if (readers[node.output] == 0) continue;
    inside.insert(node.output);
    needs.frame += output;
  }
  return needs;
}

}  // namespace layerpress::plan
