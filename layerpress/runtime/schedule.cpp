#include "layerpress/runtime/schedule.h"

#include "layerpress/runtime/group_compression.h"
#include "layerpress/runtime/stage_runner.h"

namespace layerpress::runtime {
namespace {

using Values = std::vector<bool>;

class ScheduleMaker {
 public:
  explicit ScheduleMaker(const ScheduleRequest& request) : request_(request), graph_(request.graph) {
    std::vector<graph::ValueId> wanted;
    for (std::size_t s = 0; s < request_.subgraphs.size(); ++s) {
      groups_.emplace_back();
      if (is_finished(s)) continue;
      groups_[s] = assigned_groups(graph_, request_.subgraphs[s], request_.assignments);
      for (const graph::LinearGroup& group : groups_[s])
        if (wants_gram(group, request_.assignments)) wanted.push_back(group.input);
    }
    needed_ = graph::needed_nodes(graph_, wanted, request_.available);
    Values compressed(graph_.nodes.size(), false);
    for (const auto& groups : groups_)
      for (const graph::LinearGroup& group : groups)
        for (const graph::NodeId n : group.linears) compressed[n] = true;
    for (graph::Subgraph subgraph : request_.subgraphs) {
      std::erase_if(subgraph.nodes, [&](graph::NodeId n) { return !needed_[n] && !compressed[n]; });
      running_.push_back(std::move(subgraph));
    }
    find_last_uses();
  }

  std::vector<SubgraphSchedule> make() const {
    std::vector<SubgraphSchedule> schedule;
    for (std::size_t s = 0; s < running_.size(); ++s) schedule.push_back(make(s));
    return schedule;
  }

 private:
  bool is_finished(std::size_t s) const { return !request_.finished.empty() && request_.finished[s]; }

  /// For each value the last subgraph in which something that is needed reads it, or wants its statistics.
  void find_last_uses() {
    last_use_.assign(graph_.values.size(), -1);
    for (std::size_t s = 0; s < running_.size(); ++s) {
      for (const graph::NodeId n : running_[s].nodes)
        if (needed_[n])
          for (const graph::ValueId input : graph_.nodes[n].inputs) last_use_[input] = static_cast<int>(s);
      for (const graph::LinearGroup& group : groups_[s])
        if (wants_gram(group, request_.assignments)) last_use_[group.input] = static_cast<int>(s);
    }
  }

  /// Values of this subgraph that later ones need.
  std::vector<graph::ValueId> outputs(std::size_t s) const {
    std::vector<graph::ValueId> outputs;
    for (const graph::NodeId n : running_[s].nodes) {
      const graph::ValueId value = graph_.nodes[n].output;
      if (needed_[n] && last_use_[value] > static_cast<int>(s)) outputs.push_back(value);
    }
    return outputs;
  }

  SubgraphSchedule make(std::size_t s) const {
    SubgraphSchedule plan;
    plan.name = request_.subgraphs[s].name;
    plan.finished = is_finished(s);
    const std::vector<bool> keep = request_.keep_after.empty() ? std::vector<bool>() : request_.keep_after[s];
    plan.stages = graph::split_stages(graph_, running_[s], wanted_groups(s), outputs(s), keep);
    order_groups(s, plan);
    find_drops(s, plan);

    std::vector<graph::NodeId> nodes;
    std::vector<int> runs(graph_.nodes.size(), 0);
    for (const graph::Stage& stage : plan.stages)
      for (const graph::NodeId n : stage.nodes) {
        nodes.push_back(n);
        if (++runs[n] > 1) plan.recomputes = true;
      }
    for (const graph::LinearGroup& group : plan.groups)
      nodes.insert(nodes.end(), group.linears.begin(), group.linears.end());
    plan.weights = weight_names(graph_, nodes);
    return plan;
  }

  /// Groups whose statistics are collected; the others need no stage.
  std::vector<graph::LinearGroup> wanted_groups(std::size_t s) const {
    std::vector<graph::LinearGroup> wanted;
    for (const graph::LinearGroup& group : groups_[s])
      if (wants_gram(group, request_.assignments)) wanted.push_back(group);
    return wanted;
  }

  /// Groups without statistics come first: they are compressed before anything runs that might read them.
  void order_groups(std::size_t s, SubgraphSchedule& plan) const {
    for (const graph::LinearGroup& group : groups_[s])
      if (!wants_gram(group, request_.assignments)) plan.groups.push_back(group);
    plan.stages.insert(plan.stages.begin(), plan.groups.size(), graph::Stage());
    for (const graph::LinearGroup& group : wanted_groups(s)) plan.groups.push_back(group);
  }

  void find_drops(std::size_t s, SubgraphSchedule& plan) const {
    Values read_later(graph_.values.size(), false);
    plan.drops.resize(plan.stages.size());
    for (std::size_t stage = plan.stages.size(); stage-- > 0;) {
      const auto consider = [&](graph::ValueId value) {
        if (value == graph::Graph::kInput || read_later[value] || last_use_[value] > static_cast<int>(s)) return;
        plan.drops[stage].push_back(value);
        read_later[value] = true;
      };
      for (const graph::ValueId value : plan.stages[stage].keeps) consider(value);
      for (const graph::ValueId value : plan.stages[stage].inputs) consider(value);
    }
    Values stored(graph_.values.size(), false);
    for (const graph::ValueId value : request_.available) stored[value] = true;
    for (std::size_t before = 0; before <= s; ++before)
      for (const graph::ValueId value : outputs(before)) stored[value] = true;
    for (std::size_t v = 1; v < stored.size(); ++v)
      if (stored[v] && last_use_[v] > static_cast<int>(s)) plan.boundary.push_back(static_cast<graph::ValueId>(v));
  }

  const ScheduleRequest& request_;
  const graph::Graph& graph_;
  std::vector<std::vector<graph::LinearGroup>> groups_;
  std::vector<bool> needed_;              // nodes on which a wanted value depends
  std::vector<graph::Subgraph> running_;  // subgraphs without the nodes that nothing needs
  std::vector<int> last_use_;
};

}  // namespace

std::vector<SubgraphSchedule> make_schedule(const ScheduleRequest& request) { return ScheduleMaker(request).make(); }

}  // namespace layerpress::runtime
