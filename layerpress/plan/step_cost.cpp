#include "layerpress/plan/step_cost.h"

#include <algorithm>
#include <utility>

namespace layerpress::plan {
namespace {

/// The shapes of a rank's parts of a group.
std::vector<compression::LinearShape> parts_of(const pipeline::ResultExchange::Group& group, std::size_t rank) {
  std::vector<compression::LinearShape> parts;
  for (const schedule::RowPart& part : group.division->parts[rank]) {
    parts.push_back(group.linears[part.linear]);
    parts.back().rows = part.rows();
  }
  return parts;
}

/// The parts of the rank with most rows of a group.
std::vector<compression::LinearShape> largest_parts(const pipeline::ResultExchange::Group& group) {
  const std::vector<std::vector<schedule::RowPart>>& parts = group.division->parts;
  const auto most = std::max_element(parts.begin(), parts.end(),
                                     [](const auto& a, const auto& b) { return rows_of(a) < rows_of(b); });
  return parts_of(group, static_cast<std::size_t>(most - parts.begin()));
}

std::uint64_t result_bytes(const std::vector<compression::LinearShape>& linears) {
  std::uint64_t bytes = 0;
  for (const compression::LinearShape& shape : linears)
    bytes += quant::quantized_bytes(*shape.scheme, shape.rows, shape.columns, shape.dtype);
  return bytes;
}

std::map<std::string, double> most_flops(const std::vector<schedule::GroupWork>& works,
                                         const std::vector<pipeline::ResultExchange::Group>& groups,
                                         std::size_t ranks) {
  std::map<std::string, double> most;
  double most_of_all = -1;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    std::map<std::string, double> flops;
    double all = 0;
    for (std::size_t i = 0; i < works.size(); ++i) {
      const std::vector<compression::LinearShape> parts = parts_of(groups[i], rank);
      if (parts.empty()) continue;
      for (const auto& [phase, count] : works[i].modifier->cost(parts).flops) flops[phase] += count, all += count;
    }
    if (all > most_of_all) most_of_all = all, most = std::move(flops);
  }
  return most;
}

}  // namespace

StepCost step_cost(const graph::Graph& graph, const std::vector<schedule::GroupWork>& works,
                   const compression::Assignments& assignments) {
  StepCost cost;
  if (works.empty()) return cost;
  const std::vector<pipeline::ResultExchange::Group> exchanged = pipeline::exchanged_groups(graph, works, assignments);
  cost.ranks = works.front().division.parts.size();
  std::vector<pipeline::TaskShape> tasks;
  for (std::size_t i = 0; i < works.size(); ++i)
    tasks.push_back({works[i].modifier, cost.ranks == 1 ? exchanged[i].linears : largest_parts(exchanged[i])});
  std::size_t first = 0;
  for (const std::size_t count : pipeline::turns_of(tasks)) {
    const pipeline::TaskShape& task = tasks[first];
    const StepCost::Turn turn{count,
                              exchanged[first].linears,
                              task.modifier->workspace_together(task.linears, count),
                              count * result_bytes(exchanged[first].linears),
                              works[first].propagates,
                              task.modifier->cost(task.linears).host_bytes};
    if (cost.ranks == 1)
      cost.turns.push_back(turn);
    else  // ranks have different groups; all results wait to be exchanged
      for (std::size_t i = first; i < first + count; ++i)
        cost.turns.push_back(
            {1, turn.linears, turn.workspace_bytes, result_bytes(turn.linears), turn.propagates, turn.host_bytes});
    first += count;
  }
  cost.flops = most_flops(works, exchanged, cost.ranks);
  cost.exchange = pipeline::exchange_bytes(exchanged);
  return cost;
}

}  // namespace layerpress::plan
