#include "layerpress/compression/assignments.h"

#include "layerpress/compression/statistics/square_sum.h"
#include "layerpress/graph/weight_matrix.h"

namespace layerpress::compression {

std::vector<StatisticPtr> Assignment::statistics_wanted(const ValueFacts& facts) const {
  std::vector<StatisticPtr> wanted = modifier->statistics_wanted(facts);
  const bool has_squares = std::any_of(wanted.begin(), wanted.end(),
                                       [](const auto& statistic) { return statistic->name() == SquareSum::kName; });
  if (measures_inputs && !has_squares) wanted.push_back(std::make_shared<SquareSum>());
  return wanted;
}

std::set<std::string> Assignments::transformed(const graph::Graph& graph) const {
  std::set<std::string> names;
  for (const PlannedTransform& planned : transforms)
    for (const std::string& name : planned.site.place.parameters(graph)) names.insert(name);
  return names;
}

std::set<std::string> Assignments::changed(const graph::Graph& graph) const {
  std::set<std::string> names = transformed(graph);
  for (const auto& [n, assignment] : linears)
    names.insert(graph::weight_matrix(graph.nodes[n].operation).value().weight);
  return names;
}

std::set<std::string> Assignments::changed_plain(const graph::Graph& graph) const {
  std::set<std::string> names = transformed(graph);
  for (const auto& [n, assignment] : linears)
    names.erase(graph::weight_matrix(graph.nodes[n].operation).value().weight);
  return names;
}

std::set<std::string> Assignments::read_plain(const graph::Graph& graph) const {
  std::set<std::string> names;
  for (graph::NodeId n = 0; n < static_cast<graph::NodeId>(graph.nodes.size()); ++n) {
    const graph::Operation& operation = graph.nodes[n].operation;
    if (graph::is_linear(operation) || std::holds_alternative<graph::Expert>(operation) || linears.count(n) != 0)
      continue;
    for (const graph::WeightUse& use : graph::weights_of(operation)) names.insert(use.name);
  }
  return names;
}

}  // namespace layerpress::compression
