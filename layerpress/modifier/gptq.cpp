#include "layerpress/modifier/gptq.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "layerpress/kernels/block_solver.h"
#include "layerpress/kernels/gptq.h"
#include "layerpress/modifier/propagation.h"
#include "layerpress/modifier/quantizing_modifier.h"

namespace layerpress::modifier {
namespace {

using quant::Observer;
using runtime::CompressedModule;
using runtime::LinearWeight;

/// In which order a weight's columns are quantized; weights that agree share a factorization.
struct ColumnOrder {
  bool by_activation = true;
  std::int64_t group_columns = 0;  ///< of groups that stay together; 0: none do

  auto operator<=>(const ColumnOrder&) const = default;
};

/// A factorization and how it came about.
struct Factorization {
  std::optional<kernels::HessianFactor> factor;
  std::string fallback;  ///< "" when the first attempt worked
};

Factorization factorize_with_fallbacks(const at::Tensor& gram, double dampening, const ColumnOrder& order) {
  // An all-zero or non-finite matrix says nothing about the inputs; no dampening mends that.
  const auto sum = gram.diagonal().sum().item<double>();
  if (!std::isfinite(sum)) return {std::nullopt, "round-to-nearest (non-finite inputs)"};
  if (sum == 0) return {std::nullopt, "round-to-nearest (no tokens, or nothing but zeros)"};
  for (const bool wide : {false, true}) {
    double damp = dampening;
    for (int attempt = 0; attempt<4; ++attempt, damp = damp> 0 ? damp * 10 : 0.01) {
      const bool first = !wide && attempt == 0;
      auto factor = kernels::factorize(gram, {.dampening = damp,
                                              .activation_order = order.by_activation,
                                              .group_columns = order.group_columns,
                                              .double_precision = wide});
      if (factor)
        return {std::move(factor),
                first ? "" : fmt::format("dampening {:g}{}", damp, wide ? ", double precision" : "")};
    }
  }
  return {std::nullopt, "round-to-nearest (factorization failed)"};
}

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
  GptqModifier(const Json& arguments, const std::string& where)
      : QuantizingModifier(arguments, where,
                           {"block_size", "dampening_frac", "actorder", "batched_quantization", "error_propagation"},
                           Observer::kHessian),
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
    std::uint64_t held = kernels::factorize_workspace(columns);
    if (propagation_) held += add_propagation_cost(linears, cost);
    for (const auto& [order, stacks] : stacks_of(linears)) {
      const auto size = static_cast<double>(columns);
      cost.flops["factorize"] += size * size * size / 3;
      for (const Stack& stack : stacks) add_stack_cost(linears, stack, held, cost);
    }
    return cost;
  }

  std::vector<CompressedModule> compress(const std::vector<LinearWeight>& linears,
                                         const runtime::Statistics* statistics, PhaseTimes& times) const override {
    if (statistics == nullptr) throw InternalError("[modifier.gptq] no statistics for {}", linears.front().module);
    std::vector<CompressedModule> results(linears.size());
    Solution solution{*statistics, propagation_of(linears, *statistics, times), {}};
    for (const auto& [order, stacks] : stacks_of(linears)) {
      solution.factorization = {};  // before there is another one
      solution.factorization = factorize(statistics->gram, order, times);
      for (const Stack& stack : stacks) compress_stack(linears, stack, solution, times, results);
    }
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
    std::vector<kernels::ChosenScales> scales;
    for (const LinearWeight& member : members)
      scales.push_back(search ? scales_to_choose(member) : observe(member, importance, times));
    std::vector<at::Tensor> codes;
    double loss = 0;
    if (factor)
      codes = solve(members, scales, *factor, search, loss, times);
    else
      for (std::size_t m = 0; m < members.size(); ++m) codes.push_back(round_to_nearest(members[m], scales[m], times));
    for (std::size_t m = 0; m < members.size(); ++m) {
      CompressedModule& result = results[batch[m]];
      result.weight = quant::to_quantized_weight(*scheme.weights, codes[m], scales[m], members[m].scale_dtype);
      result.report = {.module = members[m].module,
                       .scheme = describe(scheme),
                       .fallback = both(solution.factorization.fallback, solution.propagation.fallback()),
                       .output_error = std::nullopt,
                       .tokens = solution.statistics.tokens};
    }
    return loss;
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
    std::vector<kernels::GptqWeight> weights;
    double rows = 0, columns = 0;
    for (std::size_t m = 0; m < members.size(); ++m) {
      const at::Tensor& weight = members[m].weight;
      const kernels::ScaleGrid grid = quant::scale_grid(args, weight.size(0), weight.size(1));
      weights.push_back({weight, {scales[m].scale, scales[m].zero_point, grid.block_columns, grid.block_rows}});
      rows += static_cast<double>(weight.size(0));
      columns = static_cast<double>(weight.size(1));
    }
    times.add_flops("solve", solve_flops(rows * columns, columns, weights.front().scales.columns_per_group, search));
    kernels::GptqResult result = kernels::gptq(weights, factor, quant::codebook_of(args), block_size_, search);
    if (search)
      for (const kernels::ChosenScales& chosen : scales) quant::require_finite_scales(chosen);
    loss = result.loss;
    return std::move(result.codes);
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

  std::int64_t block_size_ = 128;
  double dampening_ = 0.01;
  std::optional<kernels::ErrorPropagation> propagation_;
};

}  // namespace

std::unique_ptr<runtime::Modifier> make_gptq_modifier(const Json& arguments, const std::string& where) {
  return std::make_unique<GptqModifier>(arguments, where);
}

}  // namespace layerpress::modifier
