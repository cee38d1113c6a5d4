#include "layerpress/modifier/sensitivity.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "layerpress/compression/output_loss.h"
#include "layerpress/compression/statistics/gram_statistic.h"
#include "layerpress/modifier/quantizing/factorization.h"
#include "layerpress/quant/weight_numbers.h"

namespace layerpress::modifier {
namespace {

bool shares_a_value(const quant::QuantizationScheme& scheme) {
  return scheme.weights && quant::has_global_scale(*scheme.weights);
}

/// The weight for a candidate. Only a scheme with a global scale looks at the value that fused linears share.
compression::LinearWeight rounded_in(const quant::QuantizationScheme* scheme, compression::LinearWeight linear) {
  linear.scheme = scheme;
  if (!shares_a_value(*scheme)) linear.shared.reset();
  return linear;
}

}  // namespace

Sensitivity::Sensitivity(Candidates candidates, bool asks_what_gptq_leaves)
    : candidates_(std::move(candidates)), asks_what_gptq_leaves_(asks_what_gptq_leaves) {}

const quant::QuantizationScheme* Sensitivity::scheme_of(std::size_t candidate) const {
  return candidates_[candidate]->scheme_groups().front().scheme;
}

std::vector<const quant::QuantizationScheme*> Sensitivity::schemes() const {
  std::vector<const quant::QuantizationScheme*> schemes;
  for (std::size_t c = 0; c < candidates_.size(); ++c) schemes.push_back(scheme_of(c));
  return schemes;
}

const quant::QuantizationScheme* Sensitivity::scheme_for(const quant::ModuleName& module) const {
  return candidates_.front()->scheme_for(module) == nullptr ? nullptr : &quant::unchanged_scheme();
}

std::vector<compression::StatisticPtr> Sensitivity::statistics_wanted(const compression::ValueFacts&) const {
  return {std::make_shared<compression::GramStatistic>()};
}

std::optional<double> Sensitivity::value_to_share(const compression::LinearWeight& linear,
                                                  const compression::Statistics* statistics) const {
  for (std::size_t c = 0; c < candidates_.size(); ++c)
    if (shares_a_value(*scheme_of(c)))
      return candidates_[c]->value_to_share(rounded_in(scheme_of(c), linear), statistics);
  return std::nullopt;
}

std::int64_t Sensitivity::row_step(const compression::LinearShape& linear) const {
  std::int64_t step = 1;
  for (std::size_t c = 0; c < candidates_.size(); ++c) {
    compression::LinearShape own = linear;
    own.scheme = scheme_of(c);
    step = std::lcm(step, candidates_[c]->row_step(own));  // 0 if one is 0
  }
  return step;
}

compression::CompressionCost Sensitivity::cost(const std::vector<compression::LinearShape>& linears) const {
  compression::CompressionCost cost;
  const std::int64_t columns = linears.front().columns;
  for (compression::LinearShape linear : linears) {
    const double loss_flops = compression::output_loss_flops(linear.rows, columns);
    cost.flops["measure"] += loss_flops;
    for (std::size_t c = 0; c < candidates_.size(); ++c) {
      linear.scheme = scheme_of(c);
      const compression::CompressionCost own = candidates_[c]->cost({linear});
      for (const auto& [phase, flops] : own.flops) cost.flops[phase] += flops;
      cost.flops["measure"] += loss_flops;
      const std::uint64_t measuring =
          own.result_bytes + quant::quantized_bytes(quant::dense_scheme(), linear.rows, columns, linear.dtype) +
          std::max(quant::dequantize_workspace(linear.rows, columns, linear.device),
                   compression::output_loss_workspace(columns));
      cost.workspace_bytes = std::max({cost.workspace_bytes, own.workspace_bytes, measuring});
    }
  }
  // The whole Gram matrix lies beside all of it.
  cost.workspace_bytes += static_cast<std::uint64_t>(columns * columns) * sizeof(float);
  if (asks_what_gptq_leaves_) {
    cost.flops["factorize"] += factorize_flops(columns);
    cost.workspace_bytes =
        std::max(cost.workspace_bytes, kernels::factorize_workspace(columns, linears.front().device));
  }
  return cost;
}

std::vector<compression::CompressedModule> Sensitivity::compress(const std::vector<compression::LinearWeight>& linears,
                                                                 const compression::Statistics* statistics,
                                                                 PhaseTimes& times) const {
  if (statistics == nullptr) throw InternalError("[modifier.sensitivity] no statistics for {}", linears.front().module);
  const at::Tensor upper = statistics->of<compression::GramStatistic>();
  const std::string useless = useless_inputs(upper.diagonal().sum(at::kDouble).item<double>());
  const double left = asks_what_gptq_leaves_ && useless.empty() ? left_by_gptq(upper, statistics->tokens, times) : 0;
  const at::Tensor gram = useless.empty() ? kernels::symmetric_from_upper(upper) : at::Tensor();
  std::vector<compression::CompressedModule> modules;
  for (const compression::LinearWeight& linear : linears) {
    modules.emplace_back();
    compression::ModuleReport& report = modules.back().report;
    report.module = linear.module, report.scheme = linear.scheme->format, report.fallback = useless;
    report.tokens = statistics->tokens;
    report.figures =
        gram.defined() ? figures_of(linear, gram, times) : std::vector<double>(1 + candidates_.size(), 0.0);
    if (asks_what_gptq_leaves_) report.figures.push_back(report.figures.front() * left);
  }
  return modules;
}

double Sensitivity::left_by_gptq(const at::Tensor& upper, std::int64_t tokens, PhaseTimes& times) const {
  const auto phase = times.measure("factorize");
  const Factorization factorization =
      factorize_with_fallbacks(upper, kernels::FactorizeOptions().dampening, ColumnOrder(), times);
  if (!factorization.factor) return 1;
  const at::Tensor inputs = upper.diagonal().index_select(0, factorization.factor->order).to(at::kDouble);
  // A pivot is what p columns behind a column do not say of it on the n tokens that they were fitted to. On others, n / (n - p) times as much is left,
  // and as much again because the fit is not exact.
  const at::Tensor behind = at::arange(upper.size(0) - 1, -1, -1, inputs.options());
  const at::Tensor overfit = (1 - behind / static_cast<double>(tokens)).clamp_min(0).square().reciprocal();
  const at::Tensor left = at::minimum(factorization.factor->pivots.to(at::kDouble).mul(overfit), inputs);
  return left.sum().item<double>() / inputs.sum().item<double>();
}

std::vector<double> Sensitivity::figures_of(const compression::LinearWeight& linear, const at::Tensor& gram,
                                            PhaseTimes& times) const {
  const auto measured = [&](const quant::QuantizationScheme* scheme, const quant::QuantizedWeight& rounded) {
    const auto phase = times.measure("measure");
    times.add_flops("measure", compression::output_loss_flops(linear.weight.size(0), linear.weight.size(1)));
    const at::Tensor values =
        scheme == nullptr ? at::Tensor() : quant::dequantize(*scheme, rounded, linear.weight.scalar_type());
    return compression::output_loss(linear.weight, values, gram);
  };
  std::vector<double> figures = {measured(nullptr, {})};
  for (std::size_t c = 0; c < candidates_.size(); ++c) {
    const auto rounded = candidates_[c]->compress({rounded_in(scheme_of(c), linear)}, nullptr, times);
    figures.push_back(measured(scheme_of(c), rounded.front().weight));
  }
  return figures;
}

std::vector<std::optional<double>> relative_errors(const compression::ModuleReport& report) {
  std::vector<std::optional<double>> errors;
  for (std::size_t i = 1; i < report.figures.size(); ++i) {
    const double error = report.figures[i] / report.figures.front();
    errors.push_back(std::isfinite(error) ? std::optional(std::max(0.0, error)) : std::nullopt);
  }
  return errors;
}

}  // namespace layerpress::modifier
