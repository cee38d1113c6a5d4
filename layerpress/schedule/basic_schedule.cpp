#include <algorithm>
#include <set>
#include <utility>

#include "layerpress/schedule/group_work.h"
#include "layerpress/schedule/pipelines.h"

namespace layerpress::schedule {
namespace {

class BasicSchedule {
 public:
  explicit BasicSchedule(const ScheduleRequest& request)
      : request_(request), graph_(request.graph), statistics_(request.graph, request.assignments) {
    for (std::size_t s = 0; s < request.subgraphs.size(); ++s) subgraphs_.push_back(compression(s));
  }

  Schedule make() const {
    Schedule schedule;
    if (!values_with_statistics().empty()) schedule.push_back(calibration());
    schedule.insert(schedule.end(), subgraphs_.begin(), subgraphs_.end());
    return schedule;
  }

 private:
  /// Each batch passes through the whole model, with one stage per value with statistics.
  SubgraphSchedule calibration() const {
    std::vector<std::vector<graph::ValueId>> wanted;
    for (const graph::ValueId value : values_with_statistics()) wanted.push_back({value});
    graph::Subgraph whole{"calibration", {}};
    for (std::size_t n = 0; n < graph_.nodes.size(); ++n) whole.nodes.push_back(static_cast<graph::NodeId>(n));
    std::vector<graph::Stage> stages = graph::split_stages(graph_, whole, wanted, {});
    SubgraphSchedule plan;
    plan.name = whole.name;
    plan.batch_by_batch = true;
    std::vector<graph::NodeId> nodes;
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      Step& step = plan.steps.emplace_back();
      step.drops = unread_after(stages, i);
      step.statistics.emplace(wanted[i].front(), statistics_.of(wanted[i].front()));
      nodes.insert(nodes.end(), stages[i].nodes.begin(), stages[i].nodes.end());
    }
    for (std::size_t i = 0; i < wanted.size(); ++i) plan.steps[i].stage = std::move(stages[i]);
    plan.weights = graph::weight_names(graph_, nodes);  // of the whole model: not read ahead
    return plan;
  }

  SubgraphSchedule compression(std::size_t s) const {
    SubgraphSchedule plan;
    plan.name = request_.subgraphs[s].name;
    plan.subgraph = s;
    plan.finished = request_.is_finished(s);
    plan.uses_results = false;
    plan.sharing = Sharing::kMergedRows;
    if (plan.finished) return plan;
    const std::vector<std::size_t> transforms = transforms_of(request_.subgraphs[s], request_.assignments);
    if (!transforms.empty()) plan.steps.emplace_back().transforms = transforms;
    const std::vector<graph::LinearGroup> all = assigned_groups(graph_, request_.subgraphs[s], request_.assignments);
    std::vector<graph::NodeId> linears;
    for (std::vector<graph::LinearGroup>& groups : in_steps(graph_, statistics_, all)) {
      for (const graph::LinearGroup& group : groups)
        linears.insert(linears.end(), group.linears.begin(), group.linears.end());
      plan.steps.emplace_back().groups = std::move(groups);
    }
    plan.stored = stored_of(request_.subgraphs[s], request_.assignments);
    const std::vector<graph::ValueId> observed = observed_values(plan.stored, all, request_.assignments);
    if (!observed.empty()) plan.steps.emplace_back().observed = observed;
    plan.weights = graph::weight_names(graph_, linears);
    add_changed_weights(request_, plan);
    plan.reads = plan.weights;
    return plan;
  }

  /// In the order of the graph.
  std::set<graph::ValueId> values_with_statistics() const {
    std::set<graph::ValueId> values;
    for (const SubgraphSchedule& subgraph : subgraphs_)
      for (const Step& step : subgraph.steps)
        for (const graph::ValueId value : statistics_used(step, request_.assignments)) values.insert(value);
    return values;
  }

  /// Values of stage `i` that no later stage reads.
  std::vector<graph::ValueId> unread_after(const std::vector<graph::Stage>& stages, std::size_t i) const {
    std::vector<graph::ValueId> values = stages[i].inputs;
    values.insert(values.end(), stages[i].keeps.begin(), stages[i].keeps.end());
    std::erase_if(values, [&](graph::ValueId value) {
      return graph_.is_input(value) ||
             std::any_of(stages.begin() + static_cast<std::ptrdiff_t>(i) + 1, stages.end(),
                         [&](const graph::Stage& later) {
                           return std::find(later.inputs.begin(), later.inputs.end(), value) != later.inputs.end();
                         });
    });
    return values;
  }

  const ScheduleRequest& request_;
  const graph::Graph& graph_;
  const ValueStatistics statistics_;
  Schedule subgraphs_;  // without the calibration
};

}  // namespace

Schedule basic_schedule(const ScheduleRequest& request) { return BasicSchedule(request).make(); }

}  // namespace layerpress::schedule
