#include "layerpress/schedule/demand.h"

#include <utility>

#include "layerpress/graph/partition.h"

namespace layerpress::schedule {

Demand::Demand(const ScheduleRequest& request) : request_(request), graph_(request.graph) {
  for (const graph::ValueId value : request_.available)
    if (value < static_cast<graph::ValueId>(graph_.values.size())) available_.push_back(value);
  std::vector<graph::ValueId> wanted;
  for (std::size_t s = 0; s < request_.subgraphs.size(); ++s) {
    Step& work = work_.emplace_back();
    stored_.emplace_back();
    if (request_.is_finished(s)) continue;
    work.groups = assigned_groups(graph_, request_.subgraphs[s], request_.assignments);
    work.transforms = transforms_of(request_.subgraphs[s], request_.assignments);
    stored_[s] = stored_of(request_.subgraphs[s], request_.assignments);
    work.observed = observed_values(stored_[s], work.groups, request_.assignments);
    for (const graph::ValueId value : computed_in(s)) wanted.push_back(value);
  }
  needed_ = graph::needed_nodes(graph_, wanted, available_);
  std::vector<bool> compressed(graph_.nodes.size(), false);
  for (const Step& work : work_)
    for (const graph::LinearGroup& group : work.groups)
      for (const graph::NodeId n : group.linears) compressed[n] = true;
  for (graph::Subgraph subgraph : request_.subgraphs) {
    std::erase_if(subgraph.nodes, [&](graph::NodeId n) { return !needed_[n] && !compressed[n]; });
    running_.push_back(std::move(subgraph));
  }
  find_last_uses();
}

/// The values from which statistics are computed in a subgraph, and the outputs of its trials.
std::vector<graph::ValueId> Demand::computed_in(std::size_t s) const {
  std::vector<graph::ValueId> values;
  for (const graph::ValueId collected : statistics_used(work_[s], request_.assignments))
    for (const graph::ValueId value : statistics_.sources(collected)) values.push_back(value);
  for (const std::size_t transform : transforms(s))
    for (const graph::ValueId value : request_.assignments.transforms[transform].site.trial_outputs)
      values.push_back(value);
  return values;
}

void Demand::find_last_uses() {
  last_use_.assign(graph_.values.size(), -1);
  for (std::size_t s = 0; s < running_.size(); ++s) {
    for (const graph::NodeId n : running_[s].nodes)
      if (needed_[n])
        for (const graph::ValueId input : graph_.nodes[n].inputs) last_use_[input] = static_cast<int>(s);
    for (const graph::ValueId value : computed_in(s)) last_use_[value] = static_cast<int>(s);
  }
}

std::vector<graph::ValueId> Demand::outputs(std::size_t s) const {
  std::vector<graph::ValueId> outputs;
  for (const graph::NodeId n : running_[s].nodes) {
    const graph::ValueId value = graph_.nodes[n].output;
    if (needed_[n] && is_wanted_after(value, s)) outputs.push_back(value);
  }
  return outputs;
}

}  // namespace layerpress::schedule
