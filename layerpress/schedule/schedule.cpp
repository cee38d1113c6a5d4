#include "layerpress/schedule/schedule.h"

#include <algorithm>
#include <set>

#include "layerpress/schedule/group_work.h"

namespace layerpress::schedule {

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
  return !stored.empty() || std::any_of(steps.begin(), steps.end(), [](const Step& step) {
    return step.runs() || !step.groups.empty() || !step.transforms.empty();
  });
}

std::size_t next_that_reads(const Schedule& schedule, std::size_t s) {
  while (s < schedule.size() && schedule[s].reads.empty()) ++s;
  return s;
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

void add_changed_weights(const ScheduleRequest& request, SubgraphSchedule& plan) {
  std::set<std::string> known(plan.weights.begin(), plan.weights.end()), plain;
  const std::set<std::string> all_plain = request.assignments.changed_plain(request.graph);
  for (const std::size_t transform : plan.transforms())
    for (const std::string& name : request.assignments.transforms[transform].site.place.parameters(request.graph)) {
      if (known.insert(name).second) plan.weights.push_back(name);
      if (all_plain.count(name) != 0) plain.insert(name);
    }
  plan.changed_weights.assign(plain.begin(), plain.end());
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

}  // namespace layerpress::schedule
