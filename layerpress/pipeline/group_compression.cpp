#include "layerpress/pipeline/group_compression.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "layerpress/compression/statistics/gram_statistic.h"
#include "layerpress/compression/statistics/square_sum.h"
#include "layerpress/graph/weight_matrix.h"
#include "layerpress/kernels/finite.h"
#include "layerpress/kernels/products/relative_error.h"

namespace layerpress::pipeline {

std::vector<ResultExchange::Group> exchanged_groups(const graph::Graph& graph,
                                                    const std::vector<schedule::GroupWork>& works,
                                                    const compression::Assignments& assignments) {
  std::vector<ResultExchange::Group> groups;
  for (const schedule::GroupWork& work : works)
    groups.push_back({schedule::shapes_of(graph, work.linears, assignments), &work.division});
  return groups;
}

namespace {

void require_finite(const std::vector<compression::CompressionTask>& tasks) {
  std::vector<const compression::LinearWeight*> linears;
  std::vector<at::Tensor> weights;
  for (const compression::CompressionTask& task : tasks)
    for (const compression::LinearWeight& linear : task.linears) {
      linears.push_back(&linear);
      weights.push_back(linear.weight);
    }
  const std::vector<bool> finite = kernels::each_finite(weights);
  for (std::size_t i = 0; i < linears.size(); ++i)
    if (!finite[i])
      throw DamagedWeightsError(
          "[pipeline.compress] tensor '{}.weight' holds NaN or infinite values; the checkpoint is damaged",
          linears[i]->module);
}

/// Finite values may have squares that overflow. GPTQ could only round to nearest then, and whatever makes such values is damaged.
void require_finite_statistics(const std::vector<compression::CompressionTask>& tasks) {
  for (const compression::CompressionTask& task : tasks) {
    if (task.statistics == nullptr) continue;
    const at::Tensor gram = task.statistics->of<compression::GramStatistic>();
    if (gram.defined() && !std::isfinite(gram.diagonal().sum().item<double>()))
      throw DamagedWeightsError(
          "[pipeline.compress] {}: the squares of its inputs overflow; a weight of an earlier layer, or its scale, is "
          "damaged",
          task.linears.front().module);
  }
}

std::vector<compression::LinearWeight> weights_of(const execution::RunContext& run, const schedule::GroupWork& work,
                                                  SharedValues& shared, const residency::Onload& parameters) {
  std::vector<compression::LinearWeight> linears;
  const std::vector<compression::LinearShape> shapes =
      schedule::shapes_of(run.graph, work.linears, shared.assignments());
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    const graph::Node& node = run.graph.nodes[work.linears[i]];
    linears.push_back({run.graph.module_name(node),
                       parameters.original(graph::weight_matrix(node.operation).value().weight), shapes[i].scheme,
                       shapes[i].dtype, shapes[i].group_rows});
    const compression::Assignment& assignment = shared.assignments().linears.at(work.linears[i]);
    linears.back().from_mxfp4 = assignment.from_mxfp4;
    linears.back().importance = assignment.importance;
    linears.back().stored = assignment.stored.get();
  }
  shared.fill(work.linears, work.statistics, parameters, linears);
  return linears;
}

/// The tasks of works [first, first + count); checks the weights.
std::vector<compression::CompressionTask> tasks_of(const execution::RunContext& run,
                                                   const std::vector<schedule::GroupWork>& works, std::size_t first,
                                                   std::size_t count, SharedValues& shared,
                                                   const residency::Onload& parameters) {
  std::vector<compression::CompressionTask> tasks;
  for (std::size_t i = first; i < first + count; ++i)
    tasks.push_back({weights_of(run, works[i], shared, parameters), works[i].statistics});
  const auto phase = run.times.measure("check");
  require_finite(tasks);
  require_finite_statistics(tasks);
  return tasks;
}

/// Measures the error of a result's values, if it has any; a device is not waited for. With `replaced`, the model
/// continues with them.
void read_back(const execution::RunContext& run, const compression::LinearWeight& linear,
               compression::CompressedModule& result, const graph::Node& node, residency::Onload* replaced) {
  const quant::QuantizationScheme& scheme = *linear.scheme;
  if (quant::is_unchanged(scheme)) return;
  const auto phase = run.times.measure("dequantize");
  const at::Tensor& original = linear.weight;
  if (original.is_cpu() && replaced == nullptr) {
    result.report.weight_error = quant::relative_error(scheme, original, result.weight);
    return;
  }
  const at::ScalarType dtype = replaced != nullptr ? run.placement.dtype : original.scalar_type();
  at::Tensor value = quant::dequantize(scheme, result.weight, dtype);
  if (original.is_cpu())
    result.report.weight_error = kernels::relative_error(original, value);
  else
    result.weight_error = kernels::relative_error_scalar(original, value);
  if (replaced != nullptr) replaced->replace(graph::weight_matrix(node.operation).value().weight, std::move(value));
}

/// Uses the results of a work after all ranks have them.
void use_results(const execution::RunContext& run, const schedule::GroupWork& work,
                 const compression::CompressionTask& task, std::vector<compression::CompressedModule> results,
                 residency::Onload* replaced, ResultSink& sink) {
  const std::vector<compression::LinearWeight>& linears = task.linears;
  for (std::size_t i = 0; i < results.size(); ++i) {
    const graph::Node& node = run.graph.nodes[work.linears[i]];
    results[i].report.routed_tokens = work.routed_tokens;
    if (work.statistics != nullptr)
      results[i].inputs = {work.statistics->of<compression::SquareSum>(), static_cast<double>(work.statistics->tokens)};
    read_back(run, linears[i], results[i], node, work.propagates ? replaced : nullptr);
    const auto phase = run.times.measure("write");
    sink.on_compressed(node, *linears[i].scheme, results[i]);
    results[i].weight = {};  // its codes are no longer needed
  }
}

/// The originals of a group that is compressed.
void release_originals(const graph::Graph& graph, const schedule::GroupWork& work, residency::Onload& parameters) {
  for (const graph::NodeId n : work.linears)
    parameters.release_original(graph::weight_matrix(graph.nodes[n].operation).value().weight);
}

/// Compresses this rank's parts of all works.
void compress_own_rows(const execution::RunContext& run, const std::vector<schedule::GroupWork>& works,
                       const std::vector<compression::CompressionTask>& whole, ResultExchange& exchange) {
  std::vector<std::size_t> groups;  // groups of which this rank has parts
  std::vector<compression::CompressionTask> own;
  std::vector<TaskShape> shapes;
  for (std::size_t i = 0; i < works.size(); ++i) {
    compression::CompressionTask part = own_rows(run, whole[i], works[i].division);
    if (part.linears.empty()) continue;
    groups.push_back(i);
    shapes.push_back({works[i].modifier, {}});
    for (const compression::LinearWeight& linear : part.linears)
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

void compress_groups(const execution::RunContext& run, const std::vector<schedule::GroupWork>& works,
                     SharedValues& shared, residency::Onload& parameters, bool replace, ResultSink& sink) {
  residency::Onload* replaced = replace ? &parameters : nullptr;
  if (run.group.size() == 1) {
    std::vector<TaskShape> shapes;
    for (const schedule::GroupWork& work : works)
      shapes.push_back({work.modifier, schedule::shapes_of(run.graph, work.linears, shared.assignments())});
    std::size_t first = 0;
    for (const std::size_t count : turns_of(shapes)) {
      const std::vector<compression::CompressionTask> tasks = tasks_of(run, works, first, count, shared, parameters);
      auto results = works[first].modifier->compress_together(tasks, run.times);
      for (std::size_t i = 0; i < count; ++i) {
        use_results(run, works[first + i], tasks[i], std::move(results[i]), replaced, sink);
        release_originals(run.graph, works[first + i], parameters);
      }
      first += count;
    }
    return;
  }
  const std::vector<compression::CompressionTask> whole = tasks_of(run, works, 0, works.size(), shared, parameters);
  ResultExchange exchange(run, exchanged_groups(run.graph, works, shared.assignments()));
  compress_own_rows(run, works, whole, exchange);
  exchange.trade();
  for (std::size_t i = 0; i < works.size(); ++i) {
    use_results(run, works[i], whole[i], exchange.take(i, whole[i].linears), replaced, sink);
    release_originals(run.graph, works[i], parameters);
  }
}

}  // namespace layerpress::pipeline
