#include "layerpress/schedule/group_work.h"
#include "layerpress/schedule/pipelines.h"

namespace layerpress::schedule {
namespace {

/// All linears of a subgraph that are compressed by this rank, one step each.
SubgraphSchedule compression_of(const ScheduleRequest& request, std::size_t s) {
  const graph::Subgraph& subgraph = request.subgraphs[s];
  SubgraphSchedule plan;
  plan.name = subgraph.name;
  plan.subgraph = s;
  plan.finished = request.is_finished(s);
  plan.uses_results = false;
  plan.sharing = Sharing::kLinears;
  if (plan.finished) return plan;
  std::vector<graph::NodeId> linears;
  for (const graph::LinearGroup& group : assigned_groups(request.graph, subgraph, request.assignments))
    for (const graph::NodeId n : group.linears) {
      if (request.owns && !request.owns(n)) continue;
      plan.steps.emplace_back().groups = {{group.input, {n}}};
      linears.push_back(n);
    }
  plan.weights = graph::weight_names(request.graph, linears);
  // A single process also copies the other weights.
  plan.reads = request.owns ? plan.weights : graph::weight_names(request.graph, subgraph.nodes);
  return plan;
}

}  // namespace

Schedule datafree_schedule(const ScheduleRequest& request) {
  Schedule schedule;
  for (std::size_t s = 0; s < request.subgraphs.size(); ++s) schedule.push_back(compression_of(request, s));
  return schedule;
}

}  // namespace layerpress::schedule
