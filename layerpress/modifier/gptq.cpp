#include "layerpress/modifier/gptq.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "layerpress/kernels/factorize_together.h"
#include "layerpress/kernels/gptq.h"
#include "layerpress/modifier/factorization.h"
#include "layerpress/modifier/propagation.h"
#include "layerpress/modifier/quantizing_modifier.h"

namespace layerpress::modifier {
namespace {

using quant::Observer;
using runtime::CompressedModule;
using runtime::LinearWeight;

/// What all stacks share; the factorization is that of the stacks under way.
struct Solution {
  const runtime::Statistics& statistics;
  Propagation propagation;
  Factorization factorization;
};

std::string both(const std::string& first, const std::string& second) {
  return first.empty() || second.empty() ? first + second : first + ", " + second;
}

std::int64_t rows_of(const LinearWeight& linear) { return linear.weight.size(0); }
std::int64_t rows_of(const runtime::LinearShape& linear) { return linear.rows; }
std::int64_t columns_of(const LinearWeight& linear) { return linear.weight.size(1); }
std::int64_t columns_of(const runtime::LinearShape& linear) { return linear.columns; }

/// Rows of the group that the linears belong to.
template <typename Linear>
std::int64_t rows_of_group(const std::vector<Linear>& linears) {
  if (linears.front().group_rows > 0) return linears.front().group_rows;
  std::int64_t rows = 0;
  for (const Linear& linear : linears) rows += rows_of(linear);
  return rows;
}

class GptqModifier : public QuantizingModifier {
 public:
  GptqModifier(const Json& arguments, const std::string& where, BlockSolverOf block_solver)
      : QuantizingModifier(arguments, where,
                           {"block_size", "dampening_frac", "actorder", "batched_quantization", "error_propagation"},
                           Observer::kHessian),
        block_solver_(block_solver),
        propagation_(parse_error_propagation(arguments, where)) {
    block_size_ = json_get_or<std::int64_t>(arguments, "block_size", where, 128);
    dampening_ = json_get_or<double>(arguments, "dampening_frac", where, 0.01);
    if (block_size_ < 1) throw RecipeError("[recipe.modifier] {}: block_size must be positive", where);
    if (!(dampening_ >= 0) || dampening_ > 1e6)
      throw RecipeError("[recipe.modifier] {}: dampening_frac must not be negative", where);
    std::optional<std::string> actorder = "static";
    if (arguments.contains("actorder")) {
      actorder.reset();
      if (!arguments["actorder"].is_null()) actorder = json_get<std::string>(arguments, "actorder", where);
    }
    if (actorder && *actorder != "static" && *actorder != "weight")
      throw RecipeError("[recipe.modifier] {}: actorder '{}' is not supported; static, weight or null are", where,
                        *actorder);
    set_default_actorder(actorder);
  }

  std::string type() const override { return "GPTQModifier"; }
  bool needs_data() const override { return true; }
  runtime::StatisticsWanted statistics_wanted() const override {
    runtime::StatisticsWanted wanted{.gram = true, .cross = propagation_.has_value()};
    if (propagation_ && propagation_->residual > 0)
      wanted.output_cross = {.inputs = propagation_->strength, .stream = propagation_->residual};
    return wanted;
  }

  runtime::CompressionCost cost(const std::vector<runtime::LinearShape>& linears) const override {
    runtime::CompressionCost cost;
    const std::int64_t columns = linears.front().columns;
    std::uint64_t held = propagation_ ? add_propagation_cost(linears, cost) : 0;
    const std::uint64_t factorizing = held + kernels::factorize_workspace(columns, linears.front().device);
    held += kernels::factor_bytes(columns);
    for (const auto& [order, stacks] : stacks_of(linears)) {
      const auto size = static_cast<double>(columns);
      cost.flops["factorize"] += size * size * size / 3;
      cost.workspace_bytes = std::max(cost.workspace_bytes, factorizing + cost.result_bytes);
      for (const Stack& stack : stacks) add_stack_cost(linears, stack, held, cost);
    }
    return cost;
  }

  std::vector<CompressedModule> compress(const std::vector<LinearWeight>& linears,
                                         const runtime::Statistics* statistics, PhaseTimes& times) const override {
    require_statistics(linears, statistics);
    std::vector<CompressedModule> results(linears.size());
    Solution solution{*statistics, propagation_of(linears, *statistics, times), {}};
    for (const auto& [order, stacks] : stacks_of(linears)) {
      solution.factorization = {};  // before there is another one
      solution.factorization = factorize(statistics->gram, order, times);
      for (const Stack& stack : stacks) compress_stack(linears, stack, solution, times, results);
    }
    return results;
  }

  std::size_t tasks_at_once(const std::vector<runtime::LinearShape>& linears) const override {
    const runtime::LinearShape& first = linears.front();
    if (propagation_ || block_solver_(first.device) == nullptr) return 1;
    const auto orders = stacks_of(linears);
    if (orders.size() > 1 || orders.begin()->second.size() > 1) return 1;
    std::vector<kernels::StackedRows> weights;
    std::int64_t rows = 0;
    for (const runtime::LinearShape& linear : linears) {
      weights.push_back({linear.rows, quant::scale_grid(*first.scheme->weights, linear.rows, first.columns)});
      rows += linear.rows;
    }
    const bool searched = group_search(*first.scheme, first.dtype, first.columns).has_value();
    if (!kernels::can_solve_together(weights, first.columns, searched)) return 1;
    return static_cast<std::size_t>(kernels::problems_at_once(rows, first.columns));
  }

  std::uint64_t workspace_together(const std::vector<runtime::LinearShape>& linears, std::size_t tasks) const override {
    const runtime::CompressionCost each = cost(linears);
    if (tasks == 1) return each.workspace_bytes;
    const std::int64_t columns = linears.front().columns;
    std::int64_t rows = 0;
    std::uint64_t search = 0;
    for (const runtime::LinearShape& linear : linears) {
      rows += linear.rows;
      search = std::max(search, quant::observe_workspace(*linear.scheme->weights, observer_for(linear.scheme),
                                                         linear.rows, columns, linear.device));
    }
    const auto count = static_cast<std::int64_t>(tasks);
    const std::uint64_t factors = tasks * kernels::factor_bytes(columns), results = tasks * each.result_bytes;
    const std::uint64_t solving =
        factors + results + std::max(search, kernels::gptq_together_workspace(count, rows, columns));
    // What cannot be solved with the others is compressed by itself, when all others are done.
    return std::max({kernels::factorize_together_workspace(count, columns), solving, results + each.workspace_bytes});
  }

  std::vector<std::vector<CompressedModule>> compress_together(const std::vector<runtime::CompressionTask>& tasks,
                                                               PhaseTimes& times) const override {
    if (tasks.size() == 1) return QuantizingModifier::compress_together(tasks, times);
    for (const runtime::CompressionTask& task : tasks) require_statistics(task.linears, task.statistics);
    std::vector<std::vector<CompressedModule>> results = solve_together(tasks, times);
    for (std::size_t t = 0; t < tasks.size(); ++t)
      if (results[t].empty()) results[t] = compress(tasks[t].linears, tasks[t].statistics, times);
    return results;
  }

 private:
  /// Indices of linears that have one scheme; their rows are solved as one stack.
  using Stack = std::vector<std::size_t>;

  /// How scales are chosen during the solve, if they are.
  std::optional<kernels::GroupSearch> group_search(const quant::QuantizationScheme& scheme, at::ScalarType stored,
                                                   std::int64_t columns) const {
    return quant::group_search(*scheme.weights, observer_for(&scheme), stored, columns);
  }

  ColumnOrder column_order(const quant::QuantizationScheme& scheme, std::int64_t columns) const {
    const quant::QuantizationArgs& args = *scheme.weights;
    const bool by_activation = args.actorder && (*args.actorder == "static" || *args.actorder == "weight");
    if (!by_activation || !group_search(scheme, at::kFloat, columns)) return {by_activation, 0};
    return {by_activation, quant::scale_grid(args, 1, columns).block_columns};
  }

  /// Stacks in the order of the linears, by the order of their columns: those of one order share one factorization, and only
  /// one is held at a time.
  template <typename Linear>
  std::map<ColumnOrder, std::vector<Stack>> stacks_of(const std::vector<Linear>& linears) const {
    std::map<ColumnOrder, std::vector<Stack>> result;
    for (std::size_t i = 0; i < linears.size(); ++i) {
      std::vector<Stack>& stacks = result[column_order(*linears[i].scheme, columns_of(linears[i]))];
      const auto same = [&](const Stack& stack) { return linears[stack.front()].scheme == linears[i].scheme; };
      auto found = std::find_if(stacks.begin(), stacks.end(), same);
      if (found == stacks.end()) found = stacks.insert(found, Stack());
      found->push_back(i);
    }
    return result;
  }

  /// Rows whose weights are moved at once: their copies in fp32 take 64 MiB, or are few.
  static std::int64_t rows_moved_at_once(std::int64_t columns) {
    constexpr std::int64_t kElements = 1 << 24, kFewest = 256;
    return std::max(kFewest, kElements / std::max<std::int64_t>(1, columns));
  }

  /// Members of a stack that are compressed at once: all; or, where weights are moved before, some, because moved weights
  /// are copies in fp32.
  template <typename Linear>
  static std::vector<Stack> batches_of(const std::vector<Linear>& linears, const Stack& stack, bool moves) {
    if (!moves) return {stack};
    const std::int64_t most = rows_moved_at_once(columns_of(linears[stack.front()]));
    std::vector<Stack> batches;
    std::int64_t rows = 0;
    for (const std::size_t i : stack) {
      if (batches.empty() || rows + rows_of(linears[i]) > most) {
        batches.emplace_back();
        rows = 0;
      }
      batches.back().push_back(i);
      rows += rows_of(linears[i]);
    }
    return batches;
  }

  Factorization factorize(const at::Tensor& gram, const ColumnOrder& order, PhaseTimes& times) const {
    const auto phase = times.measure("factorize");
    const auto columns = static_cast<double>(gram.size(0));
    times.add_flops("factorize", columns * columns * columns / 3);
    return factorize_with_fallbacks(gram, dampening_, order);
  }

  /// What the statistics ask for: nothing without a cross matrix, as where nothing was compressed before.
  Propagation propagation_of(const std::vector<LinearWeight>& linears, const runtime::Statistics& statistics,
                             PhaseTimes& times) const {
    if (!propagation_ || (!statistics.cross.defined() && !statistics.output_cross.defined())) return {};
    return {statistics, rows_of_group(linears), *propagation_, times};
  }

  void compress_stack(const std::vector<LinearWeight>& linears, const Stack& stack, const Solution& solution,
                      PhaseTimes& times, std::vector<CompressedModule>& results) const {
    double loss = 0;
    std::int64_t rows = 0;
    for (const Stack& batch : batches_of(linears, stack, solution.propagation.moves())) {
      loss += compress_batch(linears, batch, solution, times, results);
      for (const std::size_t i : batch) rows += rows_of(linears[i]);
    }
    const std::int64_t tokens = solution.statistics.tokens;
    if (!solution.factorization.factor || tokens == 0) return;
    for (const std::size_t i : stack)
      results[i].report.output_error = loss / static_cast<double>(rows) / static_cast<double>(tokens);
  }

  /// Compresses members of a stack, moved before; returns their loss.
  double compress_batch(const std::vector<LinearWeight>& linears, const Stack& batch, const Solution& solution,
                        PhaseTimes& times, std::vector<CompressedModule>& results) const {
    const quant::QuantizationScheme& scheme = *linears[batch.front()].scheme;
    const at::Tensor importance = solution.statistics.gram.diagonal();
    std::vector<LinearWeight> members;
    for (const std::size_t i : batch) members.push_back(solution.propagation.moved(linears[i], times));
    const auto& factor = solution.factorization.factor;
    const auto search =
        factor ? group_search(scheme, members.front().scale_dtype, columns_of(members.front())) : std::nullopt;
    const std::vector<kernels::ChosenScales> scales = scales_of(members, importance, search.has_value(), times);
    if (!search) require_finite(members, scales);
    std::vector<at::Tensor> codes;
    double loss = 0;
    if (factor)
      codes = solve(members, scales, *factor, search, loss, times);
    else
      for (std::size_t m = 0; m < members.size(); ++m) codes.push_back(round_to_nearest(members[m], scales[m], times));
    for (std::size_t m = 0; m < members.size(); ++m) {
      CompressedModule& result = results[batch[m]];
      result = result_of(members[m], codes[m], scales[m], solution.statistics.tokens);
      result.report.fallback = both(solution.factorization.fallback, solution.propagation.fallback());
    }
    return loss;
  }

  static CompressedModule result_of(const LinearWeight& linear, const at::Tensor& codes,
                                    const kernels::ChosenScales& scales, std::int64_t tokens) {
    CompressedModule result;
    result.weight = quant::to_quantized_weight(*linear.scheme->weights, codes, scales, linear.scale_dtype);
    result.report.module = linear.module;
    result.report.scheme = describe(*linear.scheme);
    result.report.tokens = tokens;
    return result;
  }

  static void require_statistics(const std::vector<LinearWeight>& linears, const runtime::Statistics* statistics) {
    if (statistics == nullptr) throw InternalError("[modifier.gptq] no statistics for {}", linears.front().module);
  }

  /// Scales of some linears with one scheme, or room for those that are chosen during the solve.
  std::vector<kernels::ChosenScales> scales_of(const std::vector<LinearWeight>& linears, const at::Tensor& importance,
                                               bool searched, PhaseTimes& times) const {
    std::vector<kernels::ChosenScales> scales;
    for (const LinearWeight& linear : linears)
      scales.push_back(searched ? scales_to_choose(linear) : observe(linear, importance, times));
    return scales;
  }

  /// Room for the scales of a linear that are chosen during the solve.
  static kernels::ChosenScales scales_to_choose(const LinearWeight& linear) {
    const quant::QuantizationArgs& args = *linear.scheme->weights;
    kernels::ChosenScales scales;
    scales.scale = at::empty(quant::scale_shape(args, rows_of(linear), columns_of(linear)),
                             linear.weight.options().dtype(at::kFloat));
    if (!args.symmetric) scales.zero_point = at::empty_like(scales.scale);
    return scales;
  }

  /// Solves the stacked rows of all members at once; codes of each, scales if they are searched, and the loss of all rows.
  std::vector<at::Tensor> solve(const std::vector<LinearWeight>& members,
                                const std::vector<kernels::ChosenScales>& scales, const kernels::HessianFactor& factor,
                                const std::optional<kernels::GroupSearch>& search, double& loss,
                                PhaseTimes& times) const {
    const auto phase = times.measure("solve");
    const quant::QuantizationArgs& args = *members.front().scheme->weights;
    const std::vector<kernels::GptqWeight> weights = problem_of(members, scales);
    add_solve_flops(members, search, times);
    kernels::GptqResult result = kernels::gptq(weights, factor, quant::codebook_of(args), block_size_, search);
    if (search) require_finite(members, scales);
    loss = result.loss;
    return std::move(result.codes);
  }

  static std::vector<kernels::GptqWeight> problem_of(const std::vector<LinearWeight>& linears,
                                                     const std::vector<kernels::ChosenScales>& scales) {
    std::vector<kernels::GptqWeight> weights;
    for (std::size_t i = 0; i < linears.size(); ++i) {
      const kernels::ScaleGrid grid =
          quant::scale_grid(*linears[i].scheme->weights, rows_of(linears[i]), columns_of(linears[i]));
      weights.push_back(
          {linears[i].weight, {scales[i].scale, scales[i].zero_point, grid.block_columns, grid.block_rows}});
    }
    return weights;
  }

  static void add_solve_flops(const std::vector<LinearWeight>& linears,
                              const std::optional<kernels::GroupSearch>& search, PhaseTimes& times) {
    for (const LinearWeight& linear : linears) {
      const auto columns = static_cast<double>(columns_of(linear));
      const kernels::ScaleGrid grid = quant::scale_grid(*linear.scheme->weights, rows_of(linear), columns_of(linear));
      times.add_flops("solve",
                      solve_flops(static_cast<double>(rows_of(linear)) * columns, columns, grid.block_columns, search));
    }
  }

  /// Results of tasks whose Gram matrices can be factorized at once; others' are empty.
  std::vector<std::vector<CompressedModule>> solve_together(const std::vector<runtime::CompressionTask>& tasks,
                                                            PhaseTimes& times) const {
    const LinearWeight& like = tasks.front().linears.front();
    const quant::QuantizationScheme& scheme = *like.scheme;
    const auto search = group_search(scheme, like.scale_dtype, columns_of(like));
    const kernels::HessianFactors solved = factorize(tasks, column_order(scheme, columns_of(like)), times);
    std::vector<std::vector<kernels::ChosenScales>> scales;
    std::vector<std::vector<kernels::GptqWeight>> problems;
    for (const runtime::CompressionTask& task : tasks) {
      scales.push_back(scales_of(task.linears, task.statistics->gram.diagonal(), search.has_value(), times));
      problems.push_back(problem_of(task.linears, scales.back()));
    }
    const auto phase = times.measure("solve");
    const std::vector<kernels::GptqResult> found =
        kernels::gptq_together(problems, solved.factors, quant::codebook_of(*scheme.weights), block_size_, search,
                               block_solver_(like.weight.device()));
    std::vector<LinearWeight> linears;  // whose results are used
    std::vector<kernels::ChosenScales> used;
    std::vector<std::vector<CompressedModule>> results(tasks.size());
    for (std::size_t t = 0; t < tasks.size(); ++t) {
      if (!solved.definite[t]) continue;
      add_solve_flops(tasks[t].linears, search, times);
      const std::int64_t tokens = tasks[t].statistics->tokens;
      double rows = 0;
      for (const LinearWeight& linear : tasks[t].linears) rows += static_cast<double>(rows_of(linear));
      for (std::size_t i = 0; i < tasks[t].linears.size(); ++i) {
        results[t].push_back(result_of(tasks[t].linears[i], found[t].codes[i], scales[t][i], tokens));
        if (tokens > 0) results[t].back().report.output_error = found[t].loss / rows / static_cast<double>(tokens);
        linears.push_back(tasks[t].linears[i]);
        used.push_back(scales[t][i]);
      }
    }
    require_finite(linears, used);
    return results;
  }

  /// Of all tasks at once; one whose inputs say nothing counts as not definite.
  kernels::HessianFactors factorize(const std::vector<runtime::CompressionTask>& tasks, const ColumnOrder& order,
                                    PhaseTimes& times) const {
    const auto phase = times.measure("factorize");
    std::vector<at::Tensor> grams, sums;
    for (const runtime::CompressionTask& task : tasks) {
      grams.push_back(task.statistics->gram);
      sums.push_back(grams.back().diagonal().sum(at::kDouble));
      const auto columns = static_cast<double>(grams.back().size(0));
      times.add_flops("factorize", columns * columns * columns / 3);
    }
    kernels::HessianFactors solved = kernels::factorize_together(grams, factorize_options(order, dampening_));
    const at::Tensor all = at::stack(sums).cpu();
    for (std::size_t t = 0; t < tasks.size(); ++t)
      if (!useless_inputs(all.const_data_ptr<double>()[t]).empty()) solved.definite[t] = false;
    return solved;
  }

  /// Each element takes up feedback from half of all columns, and per candidate for its scale from half of its group's.
  static double solve_flops(double elements, double columns, std::int64_t group_columns,
                            const std::optional<kernels::GroupSearch>& search) {
    const double candidates = search ? static_cast<double>(search->shrink.size()) : 0;
    return elements * (columns + candidates * static_cast<double>(group_columns));
  }

  /// Adds what making a mover and moving all weights costs; returns the bytes that the mover holds.
  static std::uint64_t add_propagation_cost(const std::vector<runtime::LinearShape>& linears,
                                            runtime::CompressionCost& cost) {
    const std::int64_t columns = linears.front().columns, group_rows = rows_of_group(linears);
    double& flops = cost.flops["propagate"];
    flops += kernels::mover_flops(group_rows, columns);
    for (const runtime::LinearShape& linear : linears) flops += kernels::moving_flops(linear.rows, group_rows, columns);
    cost.workspace_bytes = std::max(cost.workspace_bytes, kernels::mover_workspace(group_rows, columns));
    return kernels::mover_bytes(columns);
  }

  /// Adds what compress_stack costs, with `held` bytes of factors, to what earlier stacks cost.
  void add_stack_cost(const std::vector<runtime::LinearShape>& linears, const Stack& stack, std::uint64_t held,
                      runtime::CompressionCost& cost) const {
    for (const Stack& batch : batches_of(linears, stack, propagation_.has_value()))
      add_batch_cost(linears, batch, held, cost);
  }

  void add_batch_cost(const std::vector<runtime::LinearShape>& linears, const Stack& batch, std::uint64_t held,
                      runtime::CompressionCost& cost) const {
    const quant::QuantizationArgs& args = *linears[batch.front()].scheme->weights;
    const quant::ObserverSettings& settings = observer_for(linears[batch.front()].scheme);
    const std::int64_t columns = linears[batch.front()].columns;
    std::uint64_t search = 0, results = 0, moved = 0;
    std::int64_t rows = 0, groups = 0;
    for (const std::size_t i : batch) {
      const runtime::LinearShape& linear = linears[i];
      const auto elements = static_cast<double>(linear.rows) * static_cast<double>(columns);
      const auto searched = group_search(*linear.scheme, linear.dtype, columns);
      if (!searched) cost.flops["observe"] += quant::observe_flops(settings, elements);
      const std::int64_t width = quant::scale_grid(args, linear.rows, columns).block_columns;
      cost.flops["solve"] += solve_flops(elements, static_cast<double>(columns), width, searched);
      search += quant::observe_workspace(args, settings, linear.rows, columns, linear.device);
      results += quant::quantized_bytes(args, linear.rows, columns, linear.dtype);
      rows += linear.rows;
      groups = (columns - 1) / width + 1;
    }
    const std::uint64_t solving = linears[batch.front()].device.is_cpu()
                                      ? kernels::gptq_workspace(rows, columns, groups)
                                      : kernels::gptq_by_blocks_workspace(rows, columns);
    std::uint64_t working = results + search + solving;
    if (propagation_) {
      moved = sizeof(float) * static_cast<std::uint64_t>(rows * columns);
      working = std::max(working, kernels::moving_workspace(columns));
    }
    cost.workspace_bytes = std::max(cost.workspace_bytes, held + cost.result_bytes + moved + working);
    cost.result_bytes += results;
  }

  BlockSolverOf block_solver_;
  std::int64_t block_size_ = 128;
  double dampening_ = 0.01;
  std::optional<kernels::ErrorPropagation> propagation_;
};

}  // namespace

std::unique_ptr<runtime::Modifier> make_gptq_modifier(const Json& arguments, const std::string& where,
                                                      BlockSolverOf block_solver) {
  return std::make_unique<GptqModifier>(arguments, where, block_solver);
}

}  // namespace layerpress::modifier
