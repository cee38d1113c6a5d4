#include "layerpress/modifier/gptq.h"

#include <ATen/ATen.h>

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

  std::vector<CompressedModule> compress(const std::vector<LinearWeight>& linears,
                                         const runtime::Statistics* statistics, PhaseTimes& times) const override {
    if (statistics == nullptr) throw InternalError("[modifier.gptq] no statistics for {}", linears.front().module);
    std::vector<CompressedModule> results(linears.size());
    // Linears of one scheme are one stack of rows; schemes that order columns alike share the factorization.
    std::map<const quant::QuantizationScheme*, std::vector<std::size_t>> stacks;
    for (std::size_t i = 0; i < linears.size(); ++i) stacks[linears[i].scheme].push_back(i);
    std::map<bool, Factorization> factorizations;
    for (const auto& [scheme, members] : stacks) {
      const bool ordered = orders_columns(*scheme->weights);
      if (factorizations.count(ordered) == 0) {
        const auto phase = times.measure("factorize");
        const auto columns = static_cast<double>(statistics->gram.size(0));
        times.add_flops("factorize", columns * columns * columns / 3);
        factorizations[ordered] = factorize_with_fallbacks(statistics->gram, dampening_, ordered);
      }
      compress_stack(linears, members, *statistics, factorizations[ordered], times, results);
    }
    return results;
  }

 private:
  void compress_stack(const std::vector<LinearWeight>& linears, const std::vector<std::size_t>& members,
                      const runtime::Statistics& statistics, const Factorization& factorization, PhaseTimes& times,
                      std::vector<CompressedModule>& results) const {
    const quant::QuantizationScheme& scheme = *linears[members[0]].scheme;
    const quant::QuantizationArgs& args = *scheme.weights;
    const at::Tensor importance = statistics.gram.diagonal();
    std::vector<kernels::ChosenScales> scales;
    {
      const auto phase = times.measure("observe");
      for (const std::size_t i : members) scales.push_back(observe(linears[i], importance));
    }
    std::vector<at::Tensor> codes;
    double loss_per_row = 0;
    if (factorization.factor) {
      const auto phase = times.measure("solve");
      codes = solve(linears, members, scales, *factorization.factor, loss_per_row, times);
    } else {
      for (std::size_t m = 0; m < members.size(); ++m) {
        const at::Tensor& weight = linears[members[m]].weight;
        codes.push_back(kernels::round_to_nearest(weight, quant::scale_grid(args, weight.size(0), weight.size(1)),
                                                  quant::codebook_of(args), scales[m]));
      }
    }
    for (std::size_t m = 0; m < members.size(); ++m) {
      const LinearWeight& linear = linears[members[m]];
      CompressedModule& result = results[members[m]];
      result.weight = quant::to_quantized_weight(args, codes[m], scales[m], linear.scale_dtype);
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
  std::vector<at::Tensor> solve(const std::vector<LinearWeight>& linears, const std::vector<std::size_t>& members,
                                const std::vector<kernels::ChosenScales>& scales, const kernels::HessianFactor& factor,
                                double& loss_per_row, PhaseTimes& times) const {
    std::vector<at::Tensor> weights, row_scales, row_zeros;
    std::vector<std::int64_t> rows;
    const quant::QuantizationArgs& args = *linears[members[0]].scheme->weights;
    kernels::ColumnScales stacked;
    for (std::size_t m = 0; m < members.size(); ++m) {
      const at::Tensor& weight = linears[members[m]].weight;
      const kernels::ScaleGrid grid = quant::scale_grid(args, weight.size(0), weight.size(1));
      stacked.columns_per_group = grid.block_columns;
      const auto per_row = [&](const at::Tensor& blocks) {
        return blocks.repeat_interleave(grid.block_rows, 0).slice(0, 0, weight.size(0));
      };
      weights.push_back(weight);
      rows.push_back(weight.size(0));
      row_scales.push_back(per_row(scales[m].scale));
      if (!args.symmetric) row_zeros.push_back(per_row(scales[m].zero_point));
    }
    stacked.scale = at::cat(row_scales);
    if (!args.symmetric) stacked.zero_point = at::cat(row_zeros);
    const at::Tensor all = weights.size() == 1 ? weights[0] : at::cat(weights);
    const kernels::GptqResult result = kernels::gptq(all, factor, stacked, quant::codebook_of(args), block_size_);
    loss_per_row = result.loss / static_cast<double>(all.size(0));
    times.add_flops("solve", static_cast<double>(all.size(0)) * static_cast<double>(all.size(1)) *
                                 static_cast<double>(all.size(1)));
    return result.codes.split_with_sizes(rows);
  }

  std::int64_t block_size_ = 128;
  double dampening_ = 0.01;
};

}  // namespace

std::unique_ptr<runtime::Modifier> make_gptq_modifier(const Json& arguments, const std::string& where) {
  return std::make_unique<GptqModifier>(arguments, where);
}

}  // namespace layerpress::modifier
