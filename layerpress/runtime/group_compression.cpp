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

void require_finite(const std::vector<CompressionTask>& tasks) {
  std::vector<const LinearWeight*> linears;
  std::vector<at::Tensor> weights;
  for (const CompressionTask& task : tasks)
    for (const LinearWeight& linear : task.linears) {
      linears.push_back(&linear);
      weights.push_back(linear.weight);
    }
  const std::vector<bool> finite = kernels::each_finite(weights);
  for (std::size_t i = 0; i < linears.size(); ++i)
    if (!finite[i])
      throw DamagedWeightsError(
          "[runtime.compress] tensor '{}.weight' holds NaN or infinite values; the checkpoint is damaged",
          linears[i]->module);
}

std::vector<LinearWeight> weights_of(const RunContext& run, const GroupWork& work, const Assignments& assignments,
                                     const Onload& parameters) {
  std::vector<LinearWeight> linears;
  const std::vector<LinearShape> shapes = shapes_of(run.graph, work.linears, assignments);
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    const graph::Node& node = run.graph.nodes[work.linears[i]];
    linears.push_back({run.graph.module_name(node), parameters.original(std::get<graph::Linear>(node.operation).weight),
                       shapes[i].scheme, shapes[i].dtype, shapes[i].group_rows});
  }
  return linears;
}

/// Of works [first, first + count); weights are checked.
std::vector<CompressionTask> tasks_of(const RunContext& run, const std::vector<GroupWork>& works, std::size_t first,
                                      std::size_t count, const Assignments& assignments, const Onload& parameters) {
  std::vector<CompressionTask> tasks;
  for (std::size_t i = first; i < first + count; ++i)
    tasks.push_back({weights_of(run, works[i], assignments, parameters), works[i].statistics});
  const auto phase = run.times.measure("check");
  require_finite(tasks);
  return tasks;
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
        if (value.is_cpu())
          report.weight_error = kernels::relative_error(linears[i].weight, value);
        else
          results[i].weight_error = kernels::relative_error_scalar(linears[i].weight, value);
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

/// Compresses this rank's parts of all works.
void compress_own_rows(const RunContext& run, const std::vector<GroupWork>& works,
                       const std::vector<CompressionTask>& whole, ResultExchange& exchange) {
  std::vector<std::size_t> groups;  // of which this rank has any
  std::vector<CompressionTask> own;
  std::vector<TaskShape> shapes;
  for (std::size_t i = 0; i < works.size(); ++i) {
    CompressionTask part = own_rows(run, whole[i], works[i].division);
    if (part.linears.empty()) continue;
    groups.push_back(i);
    shapes.push_back({works[i].modifier, {}});
    for (const LinearWeight& linear : part.linears)
      shapes.back().linears.push_back({.rows = linear.weight.size(0),
                                       .columns = linear.weight.size(1),
                                       .dtype = linear.scale_dtype,
                                       .scheme = linear.scheme,
                                       .group_rows = linear.group_rows,
                                       .device = linear.weight.device()});
    own.push_back(std::move(part));
  }
  std::size_t first = 0;
  for (const std::size_t count : turns_of(shapes)) {
    const auto begin = own.begin() + static_cast<std::ptrdiff_t>(first);
    const auto results =
        shapes[first].modifier->compress_together({begin, begin + static_cast<std::ptrdiff_t>(count)}, run.times);
    for (std::size_t i = 0; i < count; ++i) exchange.put(groups[first + i], results[i]);
    first += count;
  }
}

}  // namespace

std::vector<std::size_t> turns_of(const std::vector<TaskShape>& tasks) {
  std::vector<std::size_t> turns;
  for (std::size_t first = 0; first < tasks.size(); first += turns.back()) {
    const std::size_t most = std::min(tasks[first].modifier->tasks_at_once(tasks[first].linears), tasks.size() - first);
    std::size_t count = 1;
    while (count < most && tasks[first + count] == tasks[first]) ++count;
    turns.push_back(count);
  }
  return turns;
}

void compress_groups(const RunContext& run, const std::vector<GroupWork>& works, const Assignments& assignments,
                     Onload& parameters, bool replace, ResultSink& sink) {
  Onload* replaced = replace ? &parameters : nullptr;
  if (run.group.size() == 1) {
    std::vector<TaskShape> shapes;
    for (const GroupWork& work : works)
      shapes.push_back({work.modifier, shapes_of(run.graph, work.linears, assignments)});
    std::size_t first = 0;
    for (const std::size_t count : turns_of(shapes)) {
      const std::vector<CompressionTask> tasks = tasks_of(run, works, first, count, assignments, parameters);
      auto results = works[first].modifier->compress_together(tasks, run.times);
      for (std::size_t i = 0; i < count; ++i)
        use_results(run, works[first + i], tasks[i].linears, std::move(results[i]), replaced, sink);
      first += count;
    }
    return;
  }
  const std::vector<CompressionTask> whole = tasks_of(run, works, 0, works.size(), assignments, parameters);
  ResultExchange exchange(run, exchanged_groups(run.graph, works, assignments));
  compress_own_rows(run, works, whole, exchange);
  exchange.trade();
  for (std::size_t i = 0; i < works.size(); ++i)
    use_results(run, works[i], whole[i].linears, exchange.take(i, whole[i].linears), replaced, sink);
}

}  // namespace layerpress::runtime
