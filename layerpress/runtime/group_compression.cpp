#include "layerpress/runtime/group_compression.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <utility>

#include "layerpress/kernels/finite.h"
#include "layerpress/kernels/relative_error.h"

namespace layerpress::runtime {

std::vector<graph::LinearGroup> assigned_groups(const graph::Graph& graph, const graph::Subgraph& subgraph,
                                                const Assignments& assignments) {
  std::map<const graph::Node*, graph::NodeId> id_of;
  for (const graph::NodeId n : subgraph.nodes) id_of[&graph.nodes[n]] = n;
  return graph::linear_groups(graph, subgraph,
                              [&](const graph::Node& node) { return assignments.count(id_of.at(&node)) != 0; });
}

namespace {

bool wants(const graph::LinearGroup& group, const Assignments& assignments, bool StatisticsWanted::*what) {
  return std::any_of(group.linears.begin(), group.linears.end(),
                     [&](graph::NodeId n) { return assignments.at(n).modifier->statistics_wanted().*what; });
}

}  // namespace

bool wants_gram(const graph::LinearGroup& group, const Assignments& assignments) {
  return wants(group, assignments, &StatisticsWanted::gram);
}

bool wants_cross(const graph::LinearGroup& group, const Assignments& assignments) {
  return wants(group, assignments, &StatisticsWanted::cross);
}

namespace {

void require_finite(const LinearWeight& linear) {
  if (!kernels::all_finite(linear.weight))
    throw DamagedWeightsError(
        "[runtime.compress] tensor '{}.weight' holds NaN or infinite values; the checkpoint is damaged", linear.module);
}

/// Linears that are compressed together.
std::vector<LinearShape> shapes_of(const graph::Graph& graph, const std::vector<graph::NodeId>& linears,
                                   const Assignments& assignments) {
  std::vector<LinearShape> shapes;
  std::int64_t rows = 0;
  for (const graph::NodeId n : linears) {
    const auto& operation = std::get<graph::Linear>(graph.nodes[n].operation);
    const Assignment& assignment = assignments.at(n);
    shapes.push_back({.rows = operation.out_features,
                      .columns = operation.in_features,
                      .dtype = assignment.scale_dtype,
                      .scheme = assignment.scheme,
                      .device = assignment.device});
    rows += operation.out_features;
  }
  for (LinearShape& shape : shapes) shape.group_rows = rows;
  return shapes;
}

}  // namespace

std::vector<GroupWork> divide_work(const graph::Graph& graph, const std::vector<graph::LinearGroup>& groups,
                                   const Assignments& assignments, int ranks, const DivisionRates& rates,
                                   const std::function<bool(const graph::LinearGroup&)>& everywhere) {
  std::vector<GroupWork> works;
  for (const graph::LinearGroup& group : groups) {
    const std::size_t first = works.size();
    for (const graph::NodeId n : group.linears) {
      const Modifier* modifier = assignments.at(n).modifier;
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
                                                                 const Assignments& assignments) {
  std::map<graph::ValueId, std::size_t> users;  // linears of the whole graph, by input
  for (const auto& [n, assignment] : assignments)
    if (assignment.modifier->statistics_wanted().gram) ++users[graph.nodes[n].inputs[0]];
  return [users = std::move(users)](const graph::LinearGroup& group) {
    const auto found = users.find(group.input);
    return found != users.end() && found->second > group.linears.size();
  };
}

std::vector<ResultExchange::Group> exchanged_groups(const graph::Graph& graph, const std::vector<GroupWork>& works,
                                                    const Assignments& assignments) {
  std::vector<ResultExchange::Group> groups;
  for (const GroupWork& work : works) groups.push_back({shapes_of(graph, work.linears, assignments), &work.division});
  return groups;
}

namespace {

std::vector<LinearWeight> weights_of(const RunContext& run, const GroupWork& work, const Assignments& assignments,
                                     const Onload& parameters) {
  std::vector<LinearWeight> linears;
  const std::vector<LinearShape> shapes = shapes_of(run.graph, work.linears, assignments);
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    const graph::Node& node = run.graph.nodes[work.linears[i]];
    linears.push_back({run.graph.module_name(node), parameters.original(std::get<graph::Linear>(node.operation).weight),
                       shapes[i].scheme, shapes[i].dtype, shapes[i].group_rows});
    const auto phase = run.times.measure("check");
    require_finite(linears.back());
  }
  return linears;
}

/// Everything that follows once all ranks have a work's results.
void use_results(const RunContext& run, const GroupWork& work, const std::vector<LinearWeight>& linears,
                 std::vector<CompressedModule> results, Onload* replaced, ResultSink& sink) {
  for (std::size_t i = 0; i < results.size(); ++i) {
    const graph::Node& node = run.graph.nodes[work.linears[i]];
    ModuleReport& report = results[i].report;
    report.routed_tokens = work.routed_tokens;
    {
      const auto phase = run.times.measure("dequantize");
      if (replaced != nullptr) {
        at::Tensor value = quant::dequantize(*linears[i].scheme, results[i].weight, run.placement.dtype);
        report.weight_error = kernels::relative_error(linears[i].weight, value);
        replaced->replace(std::get<graph::Linear>(node.operation).weight, std::move(value));
      } else {
        report.weight_error = quant::relative_error(*linears[i].scheme, linears[i].weight, results[i].weight);
      }
    }
    const auto phase = run.times.measure("write");
    sink.on_compressed(node, *linears[i].scheme, results[i]);
    results[i].weight = {};  // its codes are not needed any more
  }
}

}  // namespace

void compress_groups(const RunContext& run, const std::vector<GroupWork>& works, const Assignments& assignments,
                     Onload& parameters, bool replace, ResultSink& sink) {
  Onload* replaced = replace ? &parameters : nullptr;
  if (run.group.size() == 1) {
    for (const GroupWork& work : works) {
      const std::vector<LinearWeight> linears = weights_of(run, work, assignments, parameters);
      use_results(run, work, linears, work.modifier->compress(linears, work.statistics, run.times), replaced, sink);
    }
    return;
  }
  std::vector<std::vector<LinearWeight>> linears;
  for (const GroupWork& work : works) linears.push_back(weights_of(run, work, assignments, parameters));
  ResultExchange exchange(run, exchanged_groups(run.graph, works, assignments));
  for (std::size_t i = 0; i < works.size(); ++i)
    exchange.put(i, compress_own_rows(run, *works[i].modifier, linears[i], works[i].statistics, works[i].division));
  exchange.trade();
  for (std::size_t i = 0; i < works.size(); ++i)
    use_results(run, works[i], linears[i], exchange.take(i, linears[i]), replaced, sink);
}

}  // namespace layerpress::runtime
