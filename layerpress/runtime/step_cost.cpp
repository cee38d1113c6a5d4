#include "layerpress/runtime/step_cost.h"

#include <algorithm>

namespace layerpress::runtime {
namespace {

/// What a rank compresses of a group.
std::vector<LinearShape> parts_of(const ResultExchange::Group& group, std::size_t rank) {
  std::vector<LinearShape> parts;
  for (const RowPart& part : group.division->parts[rank]) {
    parts.push_back(group.linears[part.linear]);
    parts.back().rows = part.rows();
  }
  return parts;
}

std::int64_t rows_of(const std::vector<RowPart>& parts) {
  std::int64_t rows = 0;
  for (const RowPart& part : parts) rows += part.rows();
  return rows;
}

CompressionCost largest_cost(const Modifier& modifier, const ResultExchange::Group& group) {
  const std::vector<std::vector<RowPart>>& parts = group.division->parts;
  const auto most = std::max_element(parts.begin(), parts.end(),
                                     [](const auto& a, const auto& b) { return rows_of(a) < rows_of(b); });
  return modifier.cost(parts_of(group, static_cast<std::size_t>(most - parts.begin())));
}

std::map<std::string, double> most_flops(const std::vector<GroupWork>& works,
                                         const std::vector<ResultExchange::Group>& groups, std::size_t ranks) {
  std::map<std::string, double> most;
  double most_of_all = -1;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    std::map<std::string, double> flops;
    double all = 0;
    for (std::size_t i = 0; i < works.size(); ++i) {
      const std::vector<LinearShape> parts = parts_of(groups[i], rank);
      if (parts.empty()) continue;
      for (const auto& [phase, count] : works[i].modifier->cost(parts).flops) flops[phase] += count, all += count;
    }
    if (all > most_of_all) most_of_all = all, most = std::move(flops);
  }
  return most;
}

}  // namespace

StepCost step_cost(const graph::Graph& graph, const std::vector<GroupWork>& works, const Assignments& assignments) {
  StepCost cost;
  if (works.empty()) return cost;
  const std::vector<ResultExchange::Group> exchanged = exchanged_groups(graph, works, assignments);
  for (std::size_t i = 0; i < works.size(); ++i) {
    cost.groups.push_back({exchanged[i].linears, largest_cost(*works[i].modifier, exchanged[i]), 0});
    for (const LinearShape& shape : exchanged[i].linears)
      cost.groups.back().result_bytes +=
          quant::quantized_bytes(*shape.scheme->weights, shape.rows, shape.columns, shape.dtype);
  }
  cost.ranks = works.front().division.parts.size();
  cost.flops = most_flops(works, exchanged, cost.ranks);
  cost.exchange = exchange_bytes(exchanged);
  return cost;
}

}  // namespace layerpress::runtime
