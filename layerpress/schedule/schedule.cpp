#include "layerpress/schedule/schedule.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <variant>

#include "layerpress/graph/weight_matrix.h"
#include "layerpress/schedule/demand.h"
#include "layerpress/schedule/step_maker.h"

namespace layerpress::schedule {
namespace {

class ScheduleMaker {
 public:
  explicit ScheduleMaker(const ScheduleRequest& request)
      : request_(request), graph_(request.graph), demand_(request), step_maker_(request, demand_) {}

  std::vector<SubgraphSchedule> make() {
    std::set<graph::ValueId> stored(demand_.available().begin(), demand_.available().end());
    stored.erase(graph::Graph::kInput);
    std::vector<SubgraphSchedule> schedule;
    for (std::size_t s = 0; s < demand_.size(); ++s) {
      schedule.push_back(make(s));
      const std::vector<graph::ValueId> made = demand_.outputs(s);
      stored.insert(made.begin(), made.end());
      std::erase_if(stored, [&](graph::ValueId value) { return !demand_.is_wanted_after(value, s); });
      schedule.back().boundary.assign(stored.begin(), stored.end());
      add_originals(schedule.back().boundary);
    }
    find_kept_weights(schedule);
    return schedule;
  }

 private:
  SubgraphSchedule make(std::size_t s) {
    SubgraphSchedule plan;
    plan.name = request_.subgraphs[s].name;
    plan.finished = demand_.is_finished(s);
    plan.steps = step_maker_.steps(s);
    plan.stored = demand_.stored(s);
    find_drops(s, plan);

    std::vector<graph::NodeId> nodes;
    std::set<graph::NodeId> runs;
    for (const Step& step : plan.steps)
      for (const graph::NodeId n : step.stage.nodes) {
        nodes.push_back(n);
        const bool is_copy = std::holds_alternative<graph::SelectTokens>(graph_.nodes[n].operation);
        if (!runs.insert(n).second && !is_copy) plan.recomputes = true;
      }
    for (const graph::LinearGroup& group : plan.groups())
      nodes.insert(nodes.end(), group.linears.begin(), group.linears.end());
    plan.weights = graph::weight_names(graph_, nodes);
    add_changed_weights(plan);
    if (demand_.original()) run_original(plan);
    return plan;
  }

  void add_changed_weights(SubgraphSchedule& plan) const {
    std::set<std::string> known(plan.weights.begin(), plan.weights.end()), plain;
    const std::set<std::string> all_plain = request_.assignments.changed_plain(graph_);
    for (const std::size_t transform : plan.transforms())
      for (const std::string& name : request_.assignments.transforms[transform].site.place.parameters(graph_)) {
        if (known.insert(name).second) plan.weights.push_back(name);
        if (all_plain.count(name) != 0) plain.insert(name);
      }
    plan.changed_weights.assign(plain.begin(), plain.end());
  }

  /// What the original model runs beside it.
  void run_original(SubgraphSchedule& plan) const {
    std::vector<graph::NodeId> nodes;
    for (Step& step : plan.steps) {
      step.original = demand_.original()->stage(step.stage);
      nodes.insert(nodes.end(), step.original.nodes.begin(), step.original.nodes.end());
      add_originals(step.drops);
    }
    plan.original_weights = graph::weight_names(graph_, nodes);
  }

  /// Adds the stored values of the original model.
  void add_originals(std::vector<graph::ValueId>& values) const {
    if (!demand_.original()) return;
    const std::vector<graph::ValueId> own = values;
    for (const graph::ValueId value : own)
      if (demand_.original()->differs(value)) values.push_back(demand_.original()->stored_as(value));
  }

  void find_kept_weights(std::vector<SubgraphSchedule>& schedule) const {
    std::map<std::string, std::size_t> compressed_in;
    for (std::size_t s = 0; s < schedule.size(); ++s)
      for (const graph::LinearGroup& group : schedule[s].groups())
        for (const graph::NodeId n : group.linears)
          compressed_in.emplace(graph::weight_matrix(graph_.nodes[n].operation).value().weight, s);
    for (std::size_t s = schedule.size(); s-- > 0;)
      for (const std::string& weight : schedule[s].weights) {
        const auto made = compressed_in.find(weight);
        if (made == compressed_in.end() || made->second >= s) continue;
        schedule[made->second].kept_weights.push_back(weight);
        schedule[s].dropped_weights.push_back(weight);
        compressed_in.erase(made);
      }
  }

  void find_drops(std::size_t s, SubgraphSchedule& plan) const {
    std::set<graph::ValueId> read_later;
    for (auto step = plan.steps.rbegin(); step != plan.steps.rend(); ++step) {
      const auto consider = [&](graph::ValueId value) {
        if (graph_.is_input(value) || demand_.is_wanted_after(value, s)) return;
        if (read_later.insert(value).second) step->drops.push_back(value);
      };
      for (const graph::ValueId value : step->stage.keeps) consider(value);
      for (const graph::ValueId value : step->stage.inputs) consider(value);
    }
  }

  const ScheduleRequest& request_;
  const graph::Graph& graph_;
  const Demand demand_;
  StepMaker step_maker_;
};

}  // namespace

std::vector<graph::LinearGroup> SubgraphSchedule::groups() const {
  std::vector<graph::LinearGroup> all;
  for (const Step& step : steps) all.insert(all.end(), step.groups.begin(), step.groups.end());
  return all;
}

std::vector<std::size_t> SubgraphSchedule::transforms() const {
  std::vector<std::size_t> all;
  for (const Step& step : steps) all.insert(all.end(), step.transforms.begin(), step.transforms.end());
  return all;
}

bool SubgraphSchedule::has_work() const {
  return std::any_of(steps.begin(), steps.end(),
                     [](const Step& step) { return step.runs() || !step.groups.empty() || !step.transforms.empty(); });
}

std::vector<graph::ValueId> statistics_used(const Step& step, const compression::Assignments& assignments) {
  std::vector<graph::ValueId> values;
  for (const std::size_t transform : step.transforms)
    for (const auto& [value, statistics] : assignments.transforms[transform].site.statistics) values.push_back(value);
  for (const graph::LinearGroup& group : step.groups)
    if (wants_statistics(group, assignments)) values.push_back(group.input);
  values.insert(values.end(), step.observed.begin(), step.observed.end());
  return values;
}

std::vector<std::size_t> stored_of(const graph::Subgraph& subgraph, const compression::Assignments& assignments) {
  const std::set<graph::NodeId> nodes(subgraph.nodes.begin(), subgraph.nodes.end());
  std::vector<std::size_t> found;
  for (std::size_t i = 0; i < assignments.stored.size(); ++i)
    if (nodes.count(assignments.stored[i].reader) != 0) found.push_back(i);
  return found;
}

std::vector<graph::ValueId> observed_values(const std::vector<std::size_t>& stored,
                                            const std::vector<graph::LinearGroup>& groups,
                                            const compression::Assignments& assignments) {
  std::set<graph::ValueId> known;
  for (const graph::LinearGroup& group : groups)
    if (wants_statistics(group, assignments)) known.insert(group.input);
  std::vector<graph::ValueId> observed;
  std::set<const void*> seen;
  for (const std::size_t i : stored) {
    if (!seen.insert(assignments.stored[i].values.get()).second) continue;
    for (const graph::ValueId value : *assignments.stored[i].values)
      if (known.insert(value).second) observed.push_back(value);
  }
  return observed;
}

std::vector<std::size_t> transforms_of(const graph::Subgraph& subgraph, const compression::Assignments& assignments) {
  const std::set<graph::NodeId> nodes(subgraph.nodes.begin(), subgraph.nodes.end());
  std::vector<std::size_t> found;
  for (std::size_t i = 0; i < assignments.transforms.size(); ++i)
    if (nodes.count(assignments.transforms[i].site.place.source) != 0) found.push_back(i);
  return found;
}

std::vector<std::vector<graph::LinearGroup>> in_steps(const graph::Graph& graph, const ValueStatistics& statistics,
                                                      const std::vector<graph::LinearGroup>& groups) {
  std::vector<std::vector<graph::LinearGroup>> steps;
  std::uint64_t bytes = 0;
  for (const graph::LinearGroup& group : groups) {
    const std::uint64_t own = statistics.bytes(graph, group.input);
    if (steps.empty() || bytes + own > kStepStatisticsBytes) steps.emplace_back(), bytes = 0;
    steps.back().push_back(group);
    bytes += own;
  }
  return steps;
}

std::vector<SubgraphSchedule> make_schedule(const ScheduleRequest& request) { return ScheduleMaker(request).make(); }

}  // namespace layerpress::schedule
