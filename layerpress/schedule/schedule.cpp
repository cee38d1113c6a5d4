#include "layerpress/schedule/schedule.h"

#include <algorithm>
#include <map>
#include <set>

#include "layerpress/graph/expert_inputs.h"
#include "layerpress/graph/residual_writes.h"
#include "layerpress/schedule/group_work.h"

namespace layerpress::schedule {
namespace {

using Values = std::vector<bool>;

class ScheduleMaker {
 public:
  explicit ScheduleMaker(const ScheduleRequest& request) : request_(request), graph_(request.graph) {
    if (reference_) residual_writes_ = graph::residual_writes(graph_);
    for (const graph::ValueId value : request_.available)
      if (value < static_cast<graph::ValueId>(graph_.values.size())) available_.push_back(value);
    std::vector<graph::ValueId> wanted;
    for (std::size_t s = 0; s < request_.subgraphs.size(); ++s) {
      groups_.emplace_back();
      if (is_finished(s)) continue;
      groups_[s] = assigned_groups(graph_, request_.subgraphs[s], request_.assignments);
      for (const graph::LinearGroup& group : groups_[s])
        if (wants_gram(group, request_.assignments))
          for (const graph::ValueId value : collected_from(group)) wanted.push_back(value);
    }
    needed_ = graph::needed_nodes(graph_, wanted, available_);
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

  std::vector<SubgraphSchedule> make() {
    std::set<graph::ValueId> stored(available_.begin(), available_.end());
    stored.erase(graph::Graph::kInput);
    std::vector<SubgraphSchedule> schedule;
    for (std::size_t s = 0; s < running_.size(); ++s) {
      schedule.push_back(make(s));
      const std::vector<graph::ValueId> made = outputs(s);
      stored.insert(made.begin(), made.end());
      std::erase_if(stored, [&](graph::ValueId value) { return last_use_[value] <= static_cast<int>(s); });
      schedule.back().boundary.assign(stored.begin(), stored.end());
      add_references(schedule.back().boundary);
    }
    find_kept_weights(schedule);
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
        if (wants_gram(group, request_.assignments))
          for (const graph::ValueId value : collected_from(group)) last_use_[value] = static_cast<int>(s);
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

  SubgraphSchedule make(std::size_t s) {
    SubgraphSchedule plan;
    plan.name = request_.subgraphs[s].name;
    plan.finished = is_finished(s);
    add_steps(s, plan);
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
    if (reference_) run_reference(plan);
    return plan;
  }

  /// What the original model runs beside it.
  void run_reference(SubgraphSchedule& plan) const {
    std::vector<graph::NodeId> nodes;
    for (Step& step : plan.steps) {
      step.reference = reference_->stage(step.stage);
      nodes.insert(nodes.end(), step.reference.nodes.begin(), step.reference.nodes.end());
      add_references(step.drops);
    }
    plan.reference_weights = graph::weight_names(graph_, nodes);
  }

  /// Adds what is stored of the original model's values.
  void add_references(std::vector<graph::ValueId>& values) const {
    if (!reference_) return;
    const std::vector<graph::ValueId> own = values;
    for (const graph::ValueId value : own)
      if (reference_->differs(value)) values.push_back(reference_->stored_as(value));
  }

  /// Groups without statistics come first: they are compressed before anything runs that might read them. Then those with
  /// statistics, and what is left to run.
  void add_steps(std::size_t s, SubgraphSchedule& plan) {
    std::vector<graph::LinearGroup> wanted;
    for (const graph::LinearGroup& group : groups_[s]) {
      if (wants_gram(group, request_.assignments))
        wanted.push_back(group);
      else
        plan.steps.emplace_back().groups = {group};
    }
    const std::size_t first = plan.steps.size();
    for (const auto& level : graph::by_level(graph_, running_[s], wanted))
      for (std::vector<graph::LinearGroup>& groups : in_steps(graph_, level))
        plan.steps.push_back(collecting_step(std::move(groups)));
    plan.steps.emplace_back();
    do split(s, first, plan);
    while (add_survey(first, plan));
  }

  /// The output cross matrix that a group wants, if it can be had: of its one linear, where that writes into the residual
  /// stream and the original model's stream is another.
  std::optional<OutputCross> output_cross(const graph::LinearGroup& group) const {
    const auto write = residual_writes_.find(group.input);
    if (write == residual_writes_.end() || !reference_->differs(write->second.stream)) return std::nullopt;
    std::optional<kernels::ResidualShares> shares =
        request_.assignments.at(write->second.linear).modifier->statistics_wanted().output_cross;
    if (!shares) return std::nullopt;
    shares->stream /= write->second.factor;
    return OutputCross{write->second.linear, write->second.stream, *shares};
  }

  /// Values that a group's statistics are made of.
  std::vector<graph::ValueId> collected_from(const graph::LinearGroup& group) const {
    const auto outputs = output_cross(group);
    return outputs ? std::vector<graph::ValueId>{group.input, outputs->stream}
                   : std::vector<graph::ValueId>{group.input};
  }

  /// A step for groups that want statistics, of which it collects those that no earlier step did.
  Step collecting_step(std::vector<graph::LinearGroup> groups) {
    Step step;
    for (const graph::LinearGroup& group : groups) {
      if (!collected_.insert(group.input).second) continue;
      step.grams.insert(group.input);
      if (!reference_ || !reference_->differs(group.input) || !wants_cross(group, request_.assignments)) continue;
      step.crosses.insert(group.input);
      if (const auto outputs = output_cross(group)) step.output_crosses.emplace(group.input, *outputs);
    }
    step.groups = std::move(groups);
    return step;
  }

  /// Gives the steps from `first` on their stages.
  void split(std::size_t s, std::size_t first, SubgraphSchedule& plan) const {
    std::vector<std::vector<graph::ValueId>> values;
    for (std::size_t i = first; i + 1 < plan.steps.size(); ++i) {
      values.emplace_back();
      if (plan.steps[i].survey) {
        const graph::Node& route = graph_.nodes[graph_.values[*plan.steps[i].survey].producer];
        values.back() = {route.inputs[0], *plan.steps[i].survey};
      }
      for (const graph::LinearGroup& group : plan.steps[i].groups)
        for (const graph::ValueId value : collected_from(group)) values.back().push_back(value);
    }
    const std::vector<bool> keep = request_.keep_after.empty() ? std::vector<bool>() : request_.keep_after[s];
    std::vector<graph::Stage> stages = graph::split_stages(graph_, running_[s], values, outputs(s), keep);
    for (std::size_t i = 0; i < stages.size(); ++i) plan.steps[first + i].stage = std::move(stages[i]);
  }

  /// Whether what is computed of the rows that a node selects is collected, here or later. Else routed rows are enough.
  bool selects_for_statistics(const Step& step, const graph::Node& selection) const {
    if (!step.stage.wanted.empty()) return true;
    return std::any_of(step.stage.keeps.begin(), step.stage.keeps.end(), [&](graph::ValueId value) {
      return graph_.values[value].rows == graph::Rows::kSelected &&
             graph::selection_of(graph_, value).output == selection.output;
    });
  }

  /// Tokens are selected after all of them were looked at: puts a step before the first that selects too early. False when
  /// there is none.
  bool add_survey(std::size_t first, SubgraphSchedule& plan) {
    for (std::size_t i = first; i < plan.steps.size(); ++i)
      for (const graph::NodeId n : plan.steps[i].stage.nodes) {
        if (!std::holds_alternative<graph::SelectTokens>(graph_.nodes[n].operation) ||
            !selects_for_statistics(plan.steps[i], graph_.nodes[n]))
          continue;
        const graph::ValueId routing = graph_.nodes[n].inputs[2];
        if (!surveyed_.insert(routing).second) continue;
        Step survey;
        survey.survey = routing;
        plan.steps.insert(plan.steps.begin() + static_cast<std::ptrdiff_t>(i), std::move(survey));
        return true;
      }
    return false;
  }

  void find_kept_weights(std::vector<SubgraphSchedule>& schedule) const {
    std::map<std::string, std::size_t> compressed_in;
    for (std::size_t s = 0; s < schedule.size(); ++s)
      for (const graph::LinearGroup& group : schedule[s].groups())
        for (const graph::NodeId n : group.linears)
          compressed_in.emplace(std::get<graph::Linear>(graph_.nodes[n].operation).weight, s);
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
        if (graph_.is_input(value) || last_use_[value] > static_cast<int>(s)) return;
        if (read_later.insert(value).second) step->drops.push_back(value);
      };
      for (const graph::ValueId value : step->stage.keeps) consider(value);
      for (const graph::ValueId value : step->stage.inputs) consider(value);
    }
  }

  const ScheduleRequest& request_;
  const graph::Graph& graph_;
  std::vector<std::vector<graph::LinearGroup>> groups_;
  std::vector<bool> needed_;              // nodes on which a wanted value depends
  std::vector<graph::Subgraph> running_;  // subgraphs without the nodes that nothing needs
  std::vector<int> last_use_;
  std::set<graph::ValueId> surveyed_, collected_;
  std::vector<graph::ValueId> available_;  // of the compressed model
  std::optional<graph::ReferenceStream> reference_ = reference_stream(graph_, request_.assignments);
  std::map<graph::ValueId, graph::ResidualWrite> residual_writes_;
};

}  // namespace

std::vector<graph::LinearGroup> SubgraphSchedule::groups() const {
  std::vector<graph::LinearGroup> all;
  for (const Step& step : steps) all.insert(all.end(), step.groups.begin(), step.groups.end());
  return all;
}

bool SubgraphSchedule::has_work() const {
  return std::any_of(steps.begin(), steps.end(), [](const Step& step) { return step.runs() || !step.groups.empty(); });
}

std::vector<std::vector<graph::LinearGroup>> in_steps(const graph::Graph& graph,
                                                      const std::vector<graph::LinearGroup>& groups) {
  std::vector<std::vector<graph::LinearGroup>> steps;
  std::uint64_t bytes = 0;
  for (const graph::LinearGroup& group : groups) {
    const auto features = static_cast<std::uint64_t>(graph.values[group.input].features);
    const std::uint64_t own = features * features * sizeof(float);
    if (steps.empty() || bytes + own > kStepGramBytes) steps.emplace_back(), bytes = 0;
    steps.back().push_back(group);
    bytes += own;
  }
  return steps;
}

std::vector<SubgraphSchedule> make_schedule(const ScheduleRequest& request) { return ScheduleMaker(request).make(); }

}  // namespace layerpress::schedule
