#include "layerpress/modifier/gptq.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "layerpress/kernels/gptq.h"
#include "layerpress/modifier/quantizing_modifier.h"

namespace layerpress::modifier {
namespace {

using quant::Observer;
using runtime::CompressedModule;
using runtime::LinearWeight;

/// A factorization and how it came about.
struct Factorization {
  std::optional<kernels::HessianFactor> factor;
  std::string fallback;  ///< "" when the first attempt worked
};

Factorization factorize_with_fallbacks(const at::Tensor& gram, double dampening, bool activation_order) {
  // An all-zero or non-finite matrix says nothing about the inputs; no dampening mends that.
  if (!at::isfinite(gram.diagonal().sum()).item<bool>()) return {std::nullopt, "round-to-nearest (non-finite inputs)"};
  for (const bool wide : {false, true}) {
    double damp = dampening;
    for (int attempt = 0; attempt<4; ++attempt, damp = damp> 0 ? damp * 10 : 0.01) {
      const bool first = !wide && attempt == 0;
      auto factor =
          kernels::factorize(gram, {.dampening = damp, .activation_order = activation_order, .double_precision = wide});
      if (factor)
        return {std::move(factor),
                first ? "" : fmt::format("dampening {:g}{}", damp, wide ? ", double precision" : "")};
    }
  }
  return {std::nullopt, "round-to-nearest (factorization failed)"};
}

bool orders_columns(const quant::QuantizationArgs& args) {
  return args.actorder && (*args.actorder == "static" || *args.actorder == "weight");
}

class GptqModifier : public QuantizingModifier {
 public:
  GptqModifier(const Json& arguments, const std::string& where)
      : QuantizingModifier(arguments, where, {"block_size", "dampening_frac", "actorder", "batched_quantization"},
                           Observer::kHessian) {
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
  runtime::StatisticsWanted statistics_wanted() const override { return {.gram = true}; }

  runtime::CompressionCost cost(const std::vector<runtime::LinearShape>& linears) const override {
    runtime::CompressionCost cost;
    for (const auto& [ordered, stacks] : stacks_of(linears)) {
      const std::int64_t columns = linears[stacks.front().front()].columns;
      const auto size = static_cast<double>(columns);
      cost.flops["factorize"] += size * size * size / 3;
      for (const Stack& stack : stacks) add_stack_cost(linears, stack, kernels::factorize_workspace(columns), cost);
    }
    return cost;
  }

  std::vector<CompressedModule> compress(const std::vector<LinearWeight>& linears,
                                         const runtime::Statistics* statistics, PhaseTimes& times) const override {
    if (statistics == nullptr) throw InternalError("[modifier.gptq] no statistics for {}", linears.front().module);
    std::vector<CompressedModule> results(linears.size());
    for (const auto& [ordered, stacks] : stacks_of(linears)) {
      const Factorization factorization = factorize(statistics->gram, ordered, times);
      for (const Stack& stack : stacks) compress_stack(linears, stack, *statistics, factorization, times, results);
    }
    return results;
  }

 private:
  /// Indices of linears that have one scheme; their rows are solved as one stack.
  using Stack = std::vector<std::size_t>;

  /// Stacks in the order of the linears, by whether columns are ordered: those that are, or are not, share one
  /// factorization, and only one is held at a time.
  template <typename Linear>
  static std::map<bool, std::vector<Stack>> stacks_of(const std::vector<Linear>& linears) {
    std::map<bool, std::vector<Stack>> result;
    for (std::size_t i = 0; i < linears.size(); ++i) {
      std::vector<Stack>& stacks = result[orders_columns(*linears[i].scheme->weights)];
      const auto same = [&](const Stack& stack) { return linears[stack.front()].scheme == linears[i].scheme; };
      auto found = std::find_if(stacks.begin(), stacks.end(), same);
      if (found == stacks.end()) found = stacks.insert(found, Stack());
      found->push_back(i);
    }
    return result;
  }

  Factorization factorize(const at::Tensor& gram, bool ordered, PhaseTimes& times) const {
    const auto phase = times.measure("factorize");
    const auto columns = static_cast<double>(gram.size(0));
    times.add_flops("factorize", columns * columns * columns / 3);
    return factorize_with_fallbacks(gram, dampening_, ordered);
  }

  void compress_stack(const std::vector<LinearWeight>& linears, const Stack& stack,
                      const runtime::Statistics& statistics, const Factorization& factorization, PhaseTimes& times,
                      std::vector<CompressedModule>& results) const {
    const quant::QuantizationScheme& scheme = *linears[stack.front()].scheme;
    const at::Tensor importance = statistics.gram.diagonal();
    std::vector<kernels::ChosenScales> scales;
    for (const std::size_t i : stack) scales.push_back(observe(linears[i], importance, times));
    std::vector<at::Tensor> codes;
    double loss_per_row = 0;
    if (factorization.factor)
      codes = solve(linears, stack, scales, *factorization.factor, loss_per_row, times);
    else
      for (std::size_t m = 0; m < stack.size(); ++m)
        codes.push_back(round_to_nearest(linears[stack[m]], scales[m], times));
    for (std::size_t m = 0; m < stack.size(); ++m) {
      const LinearWeight& linear = linears[stack[m]];
      CompressedModule& result = results[stack[m]];
      result.weight = quant::to_quantized_weight(*scheme.weights, codes[m], scales[m], linear.scale_dtype);
      result.report = {.module = linear.module,
                       .scheme = describe(scheme),
                       .fallback = factorization.fallback,
                       .output_error = std::nullopt,
                       .tokens = statistics.tokens};
      if (factorization.factor && statistics.tokens > 0)
        result.report.output_error = loss_per_row / static_cast<double>(statistics.tokens);
    }
  }

  /// Solves the stacked rows of all members at once; codes of each member, and the mean loss of a row.
  std::vector<at::Tensor> solve(const std::vector<LinearWeight>& linears, const Stack& stack,
                                const std::vector<kernels::ChosenScales>& scales, const kernels::HessianFactor& factor,
                                double& loss_per_row, PhaseTimes& times) const {
    const auto phase = times.measure("solve");
    const quant::QuantizationArgs& args = *linears[stack.front()].scheme->weights;
    std::vector<kernels::GptqWeight> weights;
    double rows = 0, columns = 0;
    for (std::size_t m = 0; m < stack.size(); ++m) {
      const at::Tensor& weight = linears[stack[m]].weight;
      const kernels::ScaleGrid grid = quant::scale_grid(args, weight.size(0), weight.size(1));
      weights.push_back({weight, {scales[m].scale, scales[m].zero_point, grid.block_columns, grid.block_rows}});
      rows += static_cast<double>(weight.size(0));
      columns = static_cast<double>(weight.size(1));
    }
    times.add_flops("solve", rows * columns * columns);
    kernels::GptqResult result = kernels::gptq(weights, factor, quant::codebook_of(args), block_size_);
    loss_per_row = result.loss / rows;
    return std::move(result.codes);
  }

  /// Adds what compress_stack costs while a factorization is held to what earlier stacks cost.
  void add_stack_cost(const std::vector<runtime::LinearShape>& linears, const Stack& stack, std::uint64_t factor_bytes,
                      runtime::CompressionCost& cost) const {
    const quant::QuantizationArgs& args = *linears[stack.front()].scheme->weights;
    const quant::ObserverSettings& settings = observer_for(linears[stack.front()].scheme);
    const std::int64_t columns = linears[stack.front()].columns;
    std::uint64_t search = 0, results = 0;
    std::int64_t rows = 0, groups = 0;
    for (const std::size_t i : stack) {
      const runtime::LinearShape& linear = linears[i];
      const auto elements = static_cast<double>(linear.rows) * static_cast<double>(columns);
      cost.flops["observe"] += quant::observe_flops(settings, elements);
      cost.flops["solve"] += elements * static_cast<double>(columns);
      search += quant::observe_workspace(args, settings, linear.rows, columns);
      results += quant::quantized_bytes(args, linear.rows, columns, linear.dtype);
      rows += linear.rows;
      groups = (columns - 1) / quant::scale_grid(args, linear.rows, columns).block_columns + 1;
    }
    const std::uint64_t held = factor_bytes + cost.result_bytes + results + search;
    cost.workspace_bytes = std::max(cost.workspace_bytes, held + kernels::gptq_workspace(rows, columns, groups));
    cost.result_bytes += results;
  }

  std::int64_t block_size_ = 128;
  double dampening_ = 0.01;
};

}  // namespace

std::unique_ptr<runtime::Modifier> make_gptq_modifier(const Json& arguments, const std::string& where) {
  return std::make_unique<GptqModifier>(arguments, where);
}

}  // namespace layerpress::modifier
