#include "layerpress/schedule/group_work.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "layerpress/graph/weight_matrix.h"

namespace layerpress::schedule {

std::vector<graph::LinearGroup> assigned_groups(const graph::Graph& graph, const graph::Subgraph& subgraph,
                                                const compression::Assignments& assignments) {
  std::map<const graph::Node*, graph::NodeId> id_of;
  for (const graph::NodeId n : subgraph.nodes) id_of[&graph.nodes[n]] = n;
  return graph::linear_groups(graph, subgraph,
                              [&](const graph::Node& node) { return assignments.count(id_of.at(&node)) != 0; });
}

namespace {

bool wants(const graph::LinearGroup& group, const compression::Assignments& assignments,
           bool compression::StatisticsWanted::*what) {
  return std::any_of(group.linears.begin(), group.linears.end(),
                     [&](graph::NodeId n) { return assignments.at(n).modifier->statistics_wanted().*what; });
}

}  // namespace

bool wants_gram(const graph::LinearGroup& group, const compression::Assignments& assignments) {
  return wants(group, assignments, &compression::StatisticsWanted::gram);
}

bool wants_cross(const graph::LinearGroup& group, const compression::Assignments& assignments) {
  return wants(group, assignments, &compression::StatisticsWanted::cross);
}

bool wants_reference(const compression::Assignments& assignments) {
  return std::any_of(assignments.begin(), assignments.end(),
                     [](const auto& entry) { return entry.second.modifier->statistics_wanted().cross; });
}

std::optional<graph::ReferenceStream> reference_stream(const graph::Graph& graph,
                                                       const compression::Assignments& assignments) {
  if (!wants_reference(assignments)) return std::nullopt;
  std::set<graph::NodeId> compressed;
  for (const auto& [node, assignment] : assignments) compressed.insert(node);
  return graph::ReferenceStream(graph, compressed);
}

std::vector<compression::LinearShape> shapes_of(const graph::Graph& graph, const std::vector<graph::NodeId>& linears,
                                                const compression::Assignments& assignments) {
  std::vector<compression::LinearShape> shapes;
  std::int64_t rows = 0;
  for (const graph::NodeId n : linears) {
    const graph::WeightMatrix matrix = graph::weight_matrix(graph.nodes[n].operation).value();
    const compression::Assignment& assignment = assignments.at(n);
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

std::vector<GroupWork> divide_work(const graph::Graph& graph, const std::vector<graph::LinearGroup>& groups,
                                   const compression::Assignments& assignments, int ranks,
                                   const dist::DivisionRates& rates,
                                   const std::function<bool(const graph::LinearGroup&)>& everywhere) {
  std::vector<GroupWork> works;
  for (const graph::LinearGroup& group : groups) {
    const std::size_t first = works.size();
    for (const graph::NodeId n : group.linears) {
      const compression::Modifier* modifier = assignments.at(n).modifier;
      auto work = std::find_if(works.begin() + static_cast<std::ptrdiff_t>(first), works.end(),
                               [&](const auto& entry) { return entry.modifier == modifier; });
      if (work == works.end()) work = works.insert(works.end(), {group.input, modifier, {}, {}, false, nullptr, {}});
      work->linears.push_back(n);
    }
    for (std::size_t i = first; i < works.size(); ++i)
      works[i].everywhere = works.size() > first + 1 || everywhere(group);
  }
  std::vector<DividedGroup> divided;
  for (const GroupWork& work : works)
    divided.push_back({work.modifier, shapes_of(graph, work.linears, assignments), work.everywhere});
  // Steps differ in who gets their first group, and a resumed run's in nothing.
  const int first_owner = works.empty() ? 0 : works.front().input % ranks;
  std::vector<GroupDivision> divisions = divide_groups(divided, ranks, first_owner, rates);
  for (std::size_t i = 0; i < works.size(); ++i) works[i].division = std::move(divisions[i]);
  return works;
}

std::function<bool(const graph::LinearGroup&)> shares_statistics(const graph::Graph& graph,
                                                                 const compression::Assignments& assignments) {
  std::map<graph::ValueId, std::size_t> users;  // linears of the whole graph, by input
  for (const auto& [n, assignment] : assignments)
    if (assignment.modifier->statistics_wanted().gram) ++users[graph.nodes[n].inputs[0]];
  return [users = std::move(users)](const graph::LinearGroup& group) {
    const auto found = users.find(group.input);
    return found != users.end() && found->second > group.linears.size();
  };
}

}  // namespace layerpress::schedule
