#include <algorithm>
#include <map>
#include <set>

#include "layerpress/graph/weight_matrix.h"
#include "layerpress/schedule/demand.h"
#include "layerpress/schedule/pipelines.h"
#include "layerpress/schedule/step_maker.h"

namespace layerpress::schedule {
namespace {

class ScheduleMaker {
 public:
  ScheduleMaker(const ScheduleRequest& request, Passes passes)
      : request_(request), graph_(request.graph), demand_(request), step_maker_(request, demand_, passes) {}

  Schedule make() {
    std::set<graph::ValueId> stored(demand_.available().begin(), demand_.available().end());
    stored.erase(graph::Graph::kInput);
    Schedule schedule;
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
    plan.subgraph = s;
    plan.finished = request_.is_finished(s);
    plan.steps = step_maker_.steps(s);
    plan.stored = demand_.stored(s);
    find_drops(s, plan);

    std::vector<graph::NodeId> nodes;
    std::set<graph::NodeId> runs;
    for (const Step& step : plan.steps)
      for (const graph::NodeId n : step.stage.nodes) {
        nodes.push_back(n);
        if (!runs.insert(n).second && !graph::repeats_cheaply(graph_.nodes[n].operation)) plan.recomputes = true;
      }
    for (const graph::LinearGroup& group : plan.groups())
      nodes.insert(nodes.end(), group.linears.begin(), group.linears.end());
    for (const Step& step : plan.steps)
      for (const TrialStages& trial : step.trials)
        for (const graph::Stage* stage : {&trial.before, &trial.tried})
          nodes.insert(nodes.end(), stage->nodes.begin(), stage->nodes.end());
    plan.weights = graph::weight_names(graph_, nodes);
    add_changed_weights(request_, plan);
    plan.reads = plan.weights;
    if (demand_.original()) run_original(plan);
    return plan;
  }

  using Ahead = graph::OriginalStream::Ahead;

  /// What the original model runs beside it. Where it computes a value ahead of the compressed one, it stores that instead of its input.
  void run_original(SubgraphSchedule& plan) const {
    std::vector<graph::NodeId> nodes;
    std::vector<Ahead> stored;
    for (Step& step : plan.steps) {
      const std::vector<Ahead> wanted = ahead_in(step);
      std::set<graph::ValueId> known;
      for (const Ahead& ahead : stored) known.insert(ahead.value);
      step.original = demand_.original()->stage(step.stage, wanted, known);
      nodes.insert(nodes.end(), step.original.nodes.begin(), step.original.nodes.end());
      for (const Ahead& ahead : wanted) {
        if (!holds(step.stage.keeps, ahead.input) || holds(step.stage.keeps, ahead.value)) continue;
        if (!is_computed_in(plan, ahead.value)) continue;
        std::erase(step.original.keeps, ahead.input);
        step.original.keeps.push_back(ahead.value);
        stored.push_back(ahead);
      }
      // Until the compressed model stores the value, or both let it go.
      std::erase_if(stored, [&](const Ahead& ahead) { return holds(step.stage.keeps, ahead.value); });
      const std::vector<graph::ValueId> drops = step.drops;
      add_originals(step.drops);
      std::erase_if(stored, [&](const Ahead& ahead) {
        const bool dropped = holds(drops, ahead.input);
        if (dropped) step.drops.push_back(demand_.original()->stored_as(ahead.value));
        return dropped;
      });
    }
    plan.original_weights = graph::weight_names(graph_, nodes);
  }

  /// Values of the original model that a step's statistics want and that lie behind what the compressed model computes.
  static std::vector<Ahead> ahead_in(const Step& step) {
    std::vector<Ahead> found;
    for (const auto& [value, statistics] : step.statistics)
      if (const auto last = last_source(statistics, value); last.original && !holds(step.stage.wanted, last.value))
        found.push_back({value, last.value});
    return found;
  }

  bool is_computed_in(const SubgraphSchedule& plan, graph::ValueId value) const {
    return std::any_of(plan.steps.begin(), plan.steps.end(),
                       [&](const Step& step) { return holds(step.stage.nodes, graph_.values[value].producer); });
  }

  template <typename Id>
  static bool holds(const std::vector<Id>& ids, Id id) {
    return std::find(ids.begin(), ids.end(), id) != ids.end();
  }

  /// Adds the stored values of the original model.
  void add_originals(std::vector<graph::ValueId>& values) const {
    if (!demand_.original()) return;
    const std::vector<graph::ValueId> own = values;
    for (const graph::ValueId value : own)
      if (demand_.original()->differs(value)) values.push_back(demand_.original()->stored_as(value));
  }

  void find_kept_weights(Schedule& schedule) const {
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
      const auto drop_after = [&](graph::ValueId value, Step& last) {
        if (graph_.is_input(value) || demand_.is_wanted_after(value, s)) return;
        if (read_later.insert(value).second) last.drops.push_back(value);
      };
      // Trials are run after all batches have passed the step, so the next step drops what they read. The last has none.
      for (const TrialStages& trial : step->trials)
        for (const graph::Stage* stage : {&trial.before, &trial.tried})
          for (const graph::ValueId value : stage->inputs)
            if (!holds(trial.before.keeps, value)) drop_after(value, *std::prev(step));
      const auto consider = [&](graph::ValueId value) { drop_after(value, *step); };
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

Schedule sequential_schedule(const ScheduleRequest& request) { return ScheduleMaker(request, Passes::kOne).make(); }

Schedule two_pass_schedule(const ScheduleRequest& request) { return ScheduleMaker(request, Passes::kTwo).make(); }

}  // namespace layerpress::schedule
