#include "layerpress/schedule/group_work.h"

#include <algorithm>
#include <utility>

#include "layerpress/graph/weight_matrix.h"

namespace layerpress::schedule {

std::vector<graph::LinearGroup> assigned_groups(const graph::Graph& graph, const graph::Subgraph& subgraph,
                                                const compression::Assignments& assignments) {
  std::map<const graph::Node*, graph::NodeId> id_of;
  for (const graph::NodeId n : subgraph.nodes) id_of[&graph.nodes[n]] = n;
  return graph::linear_groups(graph, subgraph,
                              [&](const graph::Node& node) { return assignments.linears.count(id_of.at(&node)) != 0; });
}

bool wants_statistics(const graph::LinearGroup& group, const compression::Assignments& assignments) {
  return std::any_of(group.linears.begin(), group.linears.end(), [&](graph::NodeId n) {
    const compression::Assignment& assignment = assignments.linears.at(n);
    return !assignment.statistics_wanted({.value = group.input, .scheme = assignment.scheme}).empty();
  });
}

std::vector<compression::LinearShape> shapes_of(const graph::Graph& graph, const std::vector<graph::NodeId>& linears,
                                                const compression::Assignments& assignments) {
  std::vector<compression::LinearShape> shapes;
  std::int64_t rows = 0;
  for (const graph::NodeId n : linears) {
    const graph::WeightMatrix matrix = graph::weight_matrix(graph.nodes[n].operation).value();
    const compression::Assignment& assignment = assignments.linears.at(n);
    shapes.push_back({.rows = matrix.rows,
                      .columns = matrix.columns,
                      .dtype = assignment.scale_dtype,
                      .scheme = assignment.scheme,
                      .device = assignment.device,
                      .computed = assignment.computed});
    rows += matrix.rows;
  }
  for (compression::LinearShape& shape : shapes) shape.group_rows = rows;
  return shapes;
}

WorkDivider::WorkDivider(const graph::Graph& graph, const compression::Assignments& assignments, int ranks,
                         const dist::DivisionRates& rates)
    : graph_(graph), assignments_(assignments), ranks_(ranks), rates_(rates), statistics_(graph, assignments) {}

bool WorkDivider::is_shared(const graph::LinearGroup& group) const {
  return statistics_.readers(group.input) > group.linears.size();
}

double WorkDivider::bytes_to_send(const GroupWork& work) const {
  const std::int64_t features = graph_.values[work.input].features;
  double bytes = 0;
  for (const compression::StatisticPtr& statistic : work.owned_statistics)
    bytes += static_cast<double>(element_count(*statistic, features, statistic->all_rows(features))) * sizeof(float);
  return bytes;
}

std::vector<GroupWork> WorkDivider::works_of(Sharing sharing, const graph::LinearGroup& group) const {
  std::vector<GroupWork> works;
  for (const graph::NodeId n : group.linears) {
    const compression::Assignment& assignment = assignments_.linears.at(n);
    auto work = std::find_if(works.begin(), works.end(), [&](const GroupWork& known) {
      return known.modifier == assignment.modifier && known.propagates == assignment.propagates;
    });
    if (work == works.end()) {
      works.push_back({.input = group.input,
                       .modifier = assignment.modifier,
                       .linears = {},
                       .division = {},
                       .propagates = assignment.propagates});
      work = works.end() - 1;
    }
    work->linears.push_back(n);
  }
  // Otherwise several ranks may compress linears that need the same statistics.
  if (sharing == Sharing::kRows && works.size() == 1 && !is_shared(group))
    works.front().owned_statistics = statistics_.of_quantizers_alone(group.input);
  return works;
}

std::vector<GroupWork> WorkDivider::divide(Sharing sharing, const std::vector<graph::LinearGroup>& groups) const {
  const int ranks = sharing == Sharing::kLinears ? 1 : ranks_;
  std::vector<GroupWork> works;
  for (const graph::LinearGroup& group : groups)
    for (GroupWork& work : works_of(sharing, group)) works.push_back(std::move(work));
  std::vector<DividedGroup> divided;
  for (const GroupWork& work : works)
    divided.push_back({work.modifier, shapes_of(graph_, work.linears, assignments_), bytes_to_send(work)});
  // Steps differ in who gets their first group, and a resumed run's in nothing.
  const int first_owner = works.empty() ? 0 : works.front().input % ranks;
  std::vector<GroupDivision> divisions = divide_groups(divided, ranks, first_owner, rates_);
  for (std::size_t i = 0; i < works.size(); ++i) works[i].division = std::move(divisions[i]);
  return works;
}

}  // namespace layerpress::schedule
