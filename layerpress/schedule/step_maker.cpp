#include "layerpress/schedule/step_maker.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <variant>

#include "layerpress/graph/facts/expert_inputs.h"
#include "layerpress/graph/weight_matrix.h"
#include "layerpress/schedule/group_work.h"
#include "layerpress/schedule/trial_stages.h"

namespace layerpress::schedule {

std::vector<Step> StepMaker::steps(std::size_t s) {
  std::set<std::string> changed;
  for (const std::size_t transform : demand_.transforms(s))
    for (std::string& name : site(transform).place.parameters(graph_)) changed.insert(std::move(name));
  std::vector<Step> steps;
  std::vector<graph::LinearGroup> waiting;
  for (const graph::LinearGroup& group : demand_.groups(s)) {
    const bool is_changed = std::any_of(group.linears.begin(), group.linears.end(), [&](graph::NodeId n) {
      return changed.count(graph::weight_matrix(graph_.nodes[n].operation).value().weight) != 0;
    });
    if (passes_ == Passes::kTwo || is_changed || wants_statistics(group, request_.assignments))
      waiting.push_back(group);
    else
      steps.emplace_back().groups = {group};
  }
  const std::size_t first = steps.size();
  const ValueLevels value_levels = levels_of_values(s, waiting, changed);
  for (Level& level : levels(s, waiting, value_levels)) {
    std::vector<std::vector<graph::LinearGroup>> of_level;
    if (passes_ == Passes::kOne) of_level = in_steps(graph_, demand_.statistics(), level.groups);
    if (of_level.empty()) of_level.push_back(std::move(level.groups));
    for (std::vector<graph::LinearGroup>& groups : of_level) {
      Step& step = steps.emplace_back();
      step.transforms = std::exchange(level.transforms, {});
      step.observed = std::exchange(level.observed, {});
      step.groups = std::move(groups);
      add_statistics(step);
    }
  }
  steps.emplace_back();
  do split(s, first, value_levels, steps);
  while (add_survey(first, steps));
  add_trials(s, first, steps);
  return steps;
}

/// What follows a linear that only a transform changes is computed with its changed weight, as it is in a resumed run.
StepMaker::ValueLevels StepMaker::levels_of_values(std::size_t s, std::vector<graph::LinearGroup> groups,
                                                   const std::set<std::string>& changed) const {
  for (const graph::NodeId n : demand_.subgraph(s).nodes) {
    const graph::Node& node = graph_.nodes[n];
    const auto matrix = graph::weight_matrix(node.operation);
    if (matrix && changed.count(matrix->weight) != 0) groups.push_back({node.inputs.front(), {n}});
  }
  return graph::compression_levels(graph_, demand_.subgraph(s), groups);
}

const compression::TransformSite& StepMaker::site(std::size_t transform) const {
  return request_.assignments.transforms[transform].site;
}

/// 0 for values of other subgraphs.
std::size_t StepMaker::level_of(const ValueLevels& value_levels, graph::ValueId value) {
  const auto found = value_levels.find(value);
  return found == value_levels.end() ? 0 : found->second;
}

/// Values that are rounded behind a transform: only figures of values that are merely scaled follow from those of before.
std::set<graph::ValueId> StepMaker::rounded_behind_transforms(std::size_t s) const {
  std::set<graph::ValueId> rounded;
  for (const std::size_t transform : demand_.transforms(s))
    for (const graph::ScaledValue& scaled : site(transform).place.values)
      if (std::holds_alternative<graph::RoundValues>(graph_.nodes[graph_.values[scaled.value].producer].operation))
        rounded.insert(scaled.value);
  return rounded;
}

/// A transform is applied before the linears that it changes are compressed, as soon as the input of its source can be computed.
std::vector<StepMaker::Level> StepMaker::levels(std::size_t s, const std::vector<graph::LinearGroup>& groups,
                                                const ValueLevels& value_levels) const {
  std::map<std::pair<std::size_t, bool>, Level> levels;
  const std::set<graph::ValueId> rounded = rounded_behind_transforms(s);
  const auto at = [&](graph::ValueId value) -> Level& {
    return levels[{level_of(value_levels, value), rounded.count(value) != 0}];
  };
  for (const std::size_t transform : demand_.transforms(s))
    at(graph_.nodes[site(transform).place.source].inputs[0]).transforms.push_back(transform);
  Level with_all;  // behind all transforms, in two passes
  const bool together = passes_ == Passes::kTwo;
  for (const graph::LinearGroup& group : groups) (together ? with_all : at(group.input)).groups.push_back(group);
  for (const graph::ValueId value : demand_.observed(s)) (together ? with_all : at(value)).observed.push_back(value);
  std::vector<Level> in_order;
  for (auto& [number, level] : levels) in_order.push_back(std::move(level));
  if (!with_all.groups.empty() || !with_all.observed.empty()) in_order.push_back(std::move(with_all));
  return in_order;
}

/// A step collects those of its statistics that no earlier step has collected.
void StepMaker::add_statistics(Step& step) {
  for (const graph::ValueId value : statistics_used(step, request_.assignments))
    if (collected_.insert(value).second) step.statistics.emplace(value, demand_.statistics().of(value));
}

/// The values for which a step's stage is run.
std::vector<graph::ValueId> StepMaker::wanted_in(const Step& step) const {
  std::vector<graph::ValueId> values;
  if (step.survey) values.push_back(step.survey->logits);
  if (step.survey && step.survey->routing != step.survey->logits) values.push_back(step.survey->routing);
  for (const graph::ValueId collected : statistics_used(step, request_.assignments))
    for (const graph::ValueId value : demand_.statistics().sources(collected))
      if (std::find(values.begin(), values.end(), value) == values.end()) values.push_back(value);
  return values;
}

/// The values that change after a step: those that its transforms scale, and if it collects their statistics, values that depend on
/// linears which are compressed in this step or later. In two passes, no value that depends on linears is kept before these are compressed.
std::vector<graph::ValueId> StepMaker::stale_after(const Step& step, const ValueLevels& value_levels) const {
  std::vector<graph::ValueId> stale;
  for (const std::size_t transform : step.transforms)
    for (const graph::ScaledValue& scaled : site(transform).place.values) stale.push_back(scaled.value);
  if (step.transforms.empty() && passes_ == Passes::kOne) return stale;
  const std::size_t own =
      passes_ == Passes::kTwo
          ? 0
          : level_of(value_levels, graph_.nodes[site(step.transforms.front()).place.source].inputs[0]);
  for (const auto& [value, level] : value_levels)
    if (level > own) stale.push_back(value);
  return stale;
}

/// Gives the steps from `first` on their stages.
void StepMaker::split(std::size_t s, std::size_t first, const ValueLevels& value_levels,
                      std::vector<Step>& steps) const {
  std::vector<std::vector<graph::ValueId>> values, stale;
  for (std::size_t i = first; i + 1 < steps.size(); ++i) {
    values.push_back(wanted_in(steps[i]));
    stale.push_back(stale_after(steps[i], value_levels));
  }
  const std::vector<bool> keep = request_.keep_after.empty() ? std::vector<bool>() : request_.keep_after[s];
  std::vector<graph::Stage> stages =
      graph::split_stages(graph_, demand_.subgraph(s), values, demand_.outputs(s), keep, stale);
  for (std::size_t i = 0; i < stages.size(); ++i) steps[first + i].stage = std::move(stages[i]);
}

/// A trial reads values that are stored by then, and computes the others again.
void StepMaker::add_trials(std::size_t s, std::size_t first, std::vector<Step>& steps) const {
  std::vector<bool> stored(graph_.values.size(), true);
  for (const graph::NodeId n : demand_.subgraph(s).nodes) stored[graph_.nodes[n].output] = false;
  for (std::size_t i = first; i < steps.size(); ++i) {
    for (const graph::ValueId value : steps[i].stage.keeps) stored[value] = true;
    for (const std::size_t transform : steps[i].transforms)
      if (site(transform).candidates > 0)
        steps[i].trials.push_back(trial_stages(graph_, demand_.subgraph(s), transform, site(transform), stored));
  }
}

/// Whether what is computed of the rows that a node selects is collected, here or later. Else routed rows are enough.
bool StepMaker::selects_for_statistics(const Step& step, const graph::Node& selection) const {
  if (!step.stage.wanted.empty()) return true;
  return std::any_of(step.stage.keeps.begin(), step.stage.keeps.end(), [&](graph::ValueId value) {
    return graph_.values[value].rows == graph::Rows::kSelected &&
           graph::selection_of(graph_, value).output == selection.output;
  });
}

/// Tokens are selected after all of them were looked at: puts a step before the first that selects too early. False when there
/// is none.
bool StepMaker::add_survey(std::size_t first, std::vector<Step>& steps) {
  for (std::size_t i = first; i < steps.size(); ++i)
    for (const graph::NodeId n : steps[i].stage.nodes) {
      if (!std::holds_alternative<graph::SelectTokens>(graph_.nodes[n].operation) ||
          !selects_for_statistics(steps[i], graph_.nodes[n]))
        continue;
      const std::vector<graph::ValueId>& inputs = graph_.nodes[n].inputs;
      if (!surveyed_.insert(inputs[2]).second) continue;
      Step survey;
      survey.survey = {.logits = inputs[1], .routing = inputs[2]};
      steps.insert(steps.begin() + static_cast<std::ptrdiff_t>(i), std::move(survey));
      return true;
    }
  return false;
}

}  // namespace layerpress::schedule
