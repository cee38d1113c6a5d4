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
    return !assignment.modifier->statistics_wanted({.value = group.input, .scheme = assignment.scheme}).empty();
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
                      .device = assignment.device});
    rows += matrix.rows;
  }
  for (compression::LinearShape& shape : shapes) shape.group_rows = rows;
  return shapes;
}

WorkDivider::WorkDivider(const graph::Graph& graph, const compression::Assignments& assignments, const Options& options)
    : graph_(graph), assignments_(assignments), options_(options), statistics_(graph, assignments) {}

bool WorkDivider::is_shared(const graph::LinearGroup& group) const {
  return statistics_.readers(group.input) > group.linears.size();
}

double WorkDivider::statistics_bytes(graph::ValueId value) const {
  const std::int64_t features = graph_.values[value].features;
  double bytes = 0;
  for (const compression::StatisticPtr& statistic : statistics_.of(value))
    if (!statistics_.everywhere(value, statistic->name()))
      bytes += static_cast<double>(element_count(*statistic, features, statistic->all_rows(features))) * sizeof(float);
  return bytes;
}

std::vector<GroupWork> WorkDivider::divide(const std::vector<graph::LinearGroup>& groups) const {
  std::vector<GroupWork> works;
  for (const graph::LinearGroup& group : groups) {
    const std::size_t first = works.size();
    for (const graph::NodeId n : group.linears) {
      const compression::Quantizer* modifier = assignments_.linears.at(n).modifier;
      const bool propagates = assignments_.linears.at(n).propagates;
      auto work = std::find_if(works.begin() + static_cast<std::ptrdiff_t>(first), works.end(), [&](const auto& entry) {
        return entry.modifier == modifier && entry.propagates == propagates;
      });
      if (work == works.end())
        work = works.insert(works.end(), {group.input, modifier, {}, {}, propagates, false, nullptr, {}});
      work->linears.push_back(n);
    }
    for (std::size_t i = first; i < works.size(); ++i)
      works[i].everywhere = options_.everywhere || works.size() > first + 1 || is_shared(group);
  }
  std::vector<DividedGroup> divided;
  for (const GroupWork& work : works)
    divided.push_back({work.modifier, shapes_of(graph_, work.linears, assignments_),
                       work.everywhere ? 0 : statistics_bytes(work.input)});
  // Steps differ in who gets their first group, and a resumed run's in nothing.
  const int first_owner = works.empty() ? 0 : works.front().input % options_.ranks;
  std::vector<GroupDivision> divisions = divide_groups(divided, options_.ranks, first_owner, options_.rates);
  for (std::size_t i = 0; i < works.size(); ++i) works[i].division = std::move(divisions[i]);
  return works;
}

}  // namespace layerpress::schedule
