#include "layerpress/schedule/step_maker.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <variant>

#include "layerpress/graph/expert_inputs.h"
#include "layerpress/schedule/group_work.h"

namespace layerpress::schedule {

std::vector<Step> StepMaker::steps(std::size_t s) {
  std::vector<Step> steps;
  std::vector<graph::LinearGroup> wanted;
  for (const graph::LinearGroup& group : demand_.groups(s)) {
    if (wants_gram(group, request_.assignments))
      wanted.push_back(group);
    else
      steps.emplace_back().groups = {group};
  }
  const std::size_t first = steps.size();
  for (const auto& level : graph::by_level(graph_, demand_.subgraph(s), wanted))
    for (std::vector<graph::LinearGroup>& groups : in_steps(graph_, level))
      steps.push_back(collecting_step(std::move(groups)));
  steps.emplace_back();
  do split(s, first, steps);
  while (add_survey(first, steps));
  return steps;
}

/// A step for groups that want statistics, of which it collects those that no earlier step did.
Step StepMaker::collecting_step(std::vector<graph::LinearGroup> groups) {
  const std::optional<graph::ReferenceStream>& reference = demand_.reference();
  Step step;
  for (const graph::LinearGroup& group : groups) {
    if (!collected_.insert(group.input).second) continue;
    step.grams.insert(group.input);
    if (!reference || !reference->differs(group.input) || !wants_cross(group, request_.assignments)) continue;
    step.crosses.insert(group.input);
    if (const auto outputs = demand_.output_cross(group)) step.output_crosses.emplace(group.input, *outputs);
  }
  step.groups = std::move(groups);
  return step;
}

/// Gives the steps from `first` on their stages.
void StepMaker::split(std::size_t s, std::size_t first, std::vector<Step>& steps) const {
  std::vector<std::vector<graph::ValueId>> values;
  for (std::size_t i = first; i + 1 < steps.size(); ++i) {
    values.emplace_back();
    if (steps[i].survey) {
      const graph::Node& route = graph_.nodes[graph_.values[*steps[i].survey].producer];
      values.back() = {route.inputs[0], *steps[i].survey};
    }
    for (const graph::LinearGroup& group : steps[i].groups)
      for (const graph::ValueId value : demand_.collected_from(group)) values.back().push_back(value);
  }
  const std::vector<bool> keep = request_.keep_after.empty() ? std::vector<bool>() : request_.keep_after[s];
  std::vector<graph::Stage> stages = graph::split_stages(graph_, demand_.subgraph(s), values, demand_.outputs(s), keep);
  for (std::size_t i = 0; i < stages.size(); ++i) steps[first + i].stage = std::move(stages[i]);
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
      const graph::ValueId routing = graph_.nodes[n].inputs[2];
      if (!surveyed_.insert(routing).second) continue;
      Step survey;
      survey.survey = routing;
      steps.insert(steps.begin() + static_cast<std::ptrdiff_t>(i), std::move(survey));
      return true;
    }
  return false;
}

}  // namespace layerpress::schedule
