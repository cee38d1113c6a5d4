// Compresses groups of equal shapes together, for devices.
#include <ATen/ATen.h>

#include <algorithm>

#include "layerpress/compression/statistics/gram_statistic.h"
#include "layerpress/modifier/quantizing/gptq_modifier.h"
#include "layerpress/modifier/quantizing/output_power.h"

namespace layerpress::modifier {

using compression::CompressedModule;
using compression::LinearWeight;

std::size_t GptqModifier::tasks_at_once(const std::vector<compression::LinearShape>& linears) const {
  const compression::LinearShape& first = linears.front();
  if (propagation_ || block_solver_(first.device) == nullptr) return 1;
  const auto orders = stacks_of(linears);
  if (orders.size() > 1 || orders.begin()->second.size() > 1) return 1;
  std::vector<kernels::StackedRows> weights;
  std::int64_t rows = 0;
  for (const compression::LinearShape& linear : linears) {
    weights.push_back({linear.rows, quant::scale_grid(*first.scheme->weights, linear.rows, first.columns)});
    rows += linear.rows;
  }
  const bool searched =
      group_search(*first.scheme, quant::scale_format(*first.scheme->weights, first.dtype), first.columns).has_value();
  if (!kernels::can_solve_together(weights, first.columns, searched)) return 1;
  return static_cast<std::size_t>(kernels::problems_at_once(rows, first.columns));
}

std::uint64_t GptqModifier::workspace_together(const std::vector<compression::LinearShape>& linears,
                                               std::size_t tasks) const {
  const compression::CompressionCost each = cost(linears);
  if (tasks == 1) return each.workspace_bytes;
  const std::int64_t columns = linears.front().columns;
  std::int64_t rows = 0;
  std::uint64_t search = 0;
  for (const compression::LinearShape& linear : linears) {
    rows += linear.rows;
    search = std::max(search, quant::observe_workspace(*linear.scheme->weights, observer_for(linear.scheme),
                                                       linear.rows, columns, linear.device));
  }
  const auto count = static_cast<std::int64_t>(tasks);
  const std::uint64_t factors = tasks * kernels::factor_bytes(columns), results = tasks * each.result_bytes;
  const std::uint64_t solving =
      factors + results + std::max(search, kernels::gptq_together_workspace(count, rows, columns));
  // Tasks that cannot be solved with the others are compressed one by one after them.
  return std::max({kernels::factorize_together_workspace(count, columns), solving, results + each.workspace_bytes});
}

std::vector<std::vector<CompressedModule>> GptqModifier::compress_together(
    const std::vector<compression::CompressionTask>& tasks, PhaseTimes& times) const {
  if (tasks.size() == 1) return QuantizingModifier::compress_together(tasks, times);
  for (const compression::CompressionTask& task : tasks) require_statistics(task.linears, task.statistics);
  std::vector<std::vector<CompressedModule>> results = solve_together(tasks, times);
  for (std::size_t t = 0; t < tasks.size(); ++t)
    if (results[t].empty()) results[t] = compress(tasks[t].linears, tasks[t].statistics, times);
  return results;
}

std::vector<std::vector<CompressedModule>> GptqModifier::solve_together(
    const std::vector<compression::CompressionTask>& tasks, PhaseTimes& times) const {
  const LinearWeight& like = tasks.front().linears.front();
  const quant::QuantizationScheme& scheme = *like.scheme;
  const auto search = group_search(scheme, scale_format(like), columns_of(like));
  const kernels::HessianFactors solved = factorize(tasks, column_order(scheme, columns_of(like)), times);
  std::vector<std::vector<kernels::ChosenScales>> scales;
  std::vector<std::vector<kernels::GptqWeight>> problems;
  for (const compression::CompressionTask& task : tasks) {
    const at::Tensor importance = task.statistics->of<compression::GramStatistic>().diagonal();
    scales.emplace_back();
    for (const LinearWeight& linear : task.linears)
      scales.back().push_back(search ? scales_to_choose(linear) : observe(linear, importance, times));
    problems.push_back(problem_of(task.linears, scales.back()));
  }
  const auto phase = times.measure("solve");
  const std::vector<kernels::GptqResult> found =
      kernels::gptq_together(problems, solved.factors, quant::element_of(*scheme.weights), block_size_, search,
                             block_solver_(like.weight.device()));
  std::vector<LinearWeight> linears;  // the linears whose results are used
  std::vector<kernels::ChosenScales> used;
  std::vector<std::vector<CompressedModule>> results(tasks.size());
  for (std::size_t t = 0; t < tasks.size(); ++t) {
    if (!solved.definite[t]) continue;
    add_solve_flops(tasks[t].linears, search, times);
    const std::int64_t tokens = tasks[t].statistics->tokens;
    double rows = 0, power = 0;
    for (const LinearWeight& linear : tasks[t].linears) {
      const auto own_rows = static_cast<double>(rows_of(linear));
      rows += own_rows;
      if (tokens > 0)
        power +=
            own_rows * mean_output_power(linear.weight, tasks[t].statistics->of<compression::GramStatistic>(), tokens);
    }
    for (std::size_t i = 0; i < tasks[t].linears.size(); ++i) {
      results[t].push_back(result_of(tasks[t].linears[i], found[t].codes[i], scales[t][i], tokens));
      compression::ModuleReport& report = results[t].back().report;
      if (tokens > 0) report.output_error = found[t].loss / rows / static_cast<double>(tokens);
      if (tokens > 0) report.output_power = power / rows;
      linears.push_back(tasks[t].linears[i]);
      used.push_back(scales[t][i]);
    }
  }
  require_finite(linears, used);
  return results;
}

kernels::HessianFactors GptqModifier::factorize(const std::vector<compression::CompressionTask>& tasks,
                                                const ColumnOrder& order, PhaseTimes& times) const {
  const auto phase = times.measure("factorize");
  std::vector<at::Tensor> grams, sums;
  for (const compression::CompressionTask& task : tasks) {
    grams.push_back(task.statistics->of<compression::GramStatistic>());
    sums.push_back(grams.back().diagonal().sum(at::kDouble));
    times.add_flops("factorize", factorize_flops(grams.back().size(0)));
  }
  kernels::HessianFactors solved = kernels::factorize_together(grams, factorize_options(order, dampening_));
  const at::Tensor all = at::stack(sums).cpu();
  for (std::size_t t = 0; t < tasks.size(); ++t)
    if (!useless_inputs(all.const_data_ptr<double>()[t]).empty()) solved.definite[t] = false;
  return solved;
}

}  // namespace layerpress::modifier
