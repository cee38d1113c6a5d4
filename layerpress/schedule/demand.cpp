#include "layerpress/schedule/demand.h"

#include <utility>

#include "layerpress/graph/partition.h"

namespace layerpress::schedule {

Demand::Demand(const ScheduleRequest& request) : request_(request), graph_(request.graph) {
  if (reference_) residual_writes_ = graph::residual_writes(graph_);
  for (const graph::ValueId value : request_.available)
    if (value < static_cast<graph::ValueId>(graph_.values.size())) available_.push_back(value);
  for (std::size_t s = 0; s < request_.subgraphs.size(); ++s)
    groups_.push_back(is_finished(s) ? std::vector<graph::LinearGroup>()
                                     : assigned_groups(graph_, request_.subgraphs[s], request_.assignments));
  needed_ = graph::needed_nodes(graph_, wanted_values(), available_);
  std::vector<bool> compressed(graph_.nodes.size(), false);
  for (const auto& groups : groups_)
    for (const graph::LinearGroup& group : groups)
      for (const graph::NodeId n : group.linears) compressed[n] = true;
  for (graph::Subgraph subgraph : request_.subgraphs) {
    std::erase_if(subgraph.nodes, [&](graph::NodeId n) { return !needed_[n] && !compressed[n]; });
    running_.push_back(std::move(subgraph));
  }
  find_last_uses();
}

std::vector<graph::ValueId> Demand::wanted_values() const {
  std::vector<graph::ValueId> wanted;
  for (const auto& groups : groups_)
    for (const graph::LinearGroup& group : groups)
      if (wants_gram(group, request_.assignments))
        for (const graph::ValueId value : collected_from(group)) wanted.push_back(value);
  return wanted;
}

void Demand::find_last_uses() {
  last_use_.assign(graph_.values.size(), -1);
  for (std::size_t s = 0; s < running_.size(); ++s) {
    for (const graph::NodeId n : running_[s].nodes)
      if (needed_[n])
        for (const graph::ValueId input : graph_.nodes[n].inputs) last_use_[input] = static_cast<int>(s);
    for (const graph::LinearGroup& group : groups_[s])
      if (wants_gram(group, request_.assignments))
        for (const graph::ValueId value : collected_from(group)) last_use_[value] = static_cast<int>(s);
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

std::vector<graph::ValueId> Demand::collected_from(const graph::LinearGroup& group) const {
  const auto outputs = output_cross(group);
  return outputs ? std::vector<graph::ValueId>{group.input, outputs->stream} : std::vector<graph::ValueId>{group.input};
}

std::optional<OutputCross> Demand::output_cross(const graph::LinearGroup& group) const {
  const auto write = residual_writes_.find(group.input);
  if (write == residual_writes_.end() || !reference_->differs(write->second.stream)) return std::nullopt;
  std::optional<kernels::ResidualShares> shares =
      request_.assignments.at(write->second.linear).modifier->statistics_wanted().output_cross;
  if (!shares) return std::nullopt;
  shares->stream /= write->second.factor;
  return OutputCross{write->second.linear, write->second.stream, *shares};
}

}  // namespace layerpress::schedule
