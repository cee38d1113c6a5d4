#include "layerpress/modifier/quantizing/quantizing_modifier.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "layerpress/base/text.h"
#include "layerpress/compression/statistics/gram_statistic.h"
#include "layerpress/compression/statistics/minimum_maximum.h"
#include "layerpress/compression/statistics/moving_range.h"
#include "layerpress/compression/statistics/square_sum.h"
#include "layerpress/kernels/finite.h"
#include "layerpress/quant/rounding/exact_scales.h"
#include "layerpress/quant/rounding/row_transfer.h"
#include "layerpress/quant/rounding/value_parameters.h"
#include "layerpress/quant/weight_numbers.h"

namespace layerpress::modifier {
namespace {

/// `run`: consecutive channels that have one range; 0: all.
compression::RangeStatisticPtr range_statistic(const quant::InputObserverSettings& observer,
                                               const quant::QuantizationArgs& args, std::int64_t run) {
  if (observer.observer == quant::InputObserver::kRange) return std::make_shared<compression::MinimumMaximum>();
  return std::make_shared<compression::MovingRange>(observer, args, run);
}

}  // namespace

const quant::QuantizationScheme* QuantizingModifier::scheme_for(const quant::ModuleName& module) const {
  if (ignore_->matches(module)) return nullptr;
  if (const int attention = attention_targets_->group_of(module); attention >= 0)
    throw RecipeError(
        "[recipe.modifier] {}: the group has no weights, but its targets match {}; groups without weights are for "
        "attention modules, such as re:.*self_attn$",
        attention_groups_[static_cast<std::size_t>(attention)].where, module.name);
  const int group = targets_->group_of(module);
  return group < 0 ? nullptr : &groups_[static_cast<std::size_t>(group)].scheme;
}

std::vector<compression::Quantizer::SchemeGroup> QuantizingModifier::scheme_groups() const {
  std::vector<SchemeGroup> groups;
  for (const Group& group : groups_) groups.push_back({group.name, &group.scheme});
  for (const AttentionGroup& group : attention_groups_) groups.push_back({group.name, &group.scheme});
  return groups;
}

std::int64_t QuantizingModifier::row_step(const compression::LinearShape& linear) const {
  return quant::rows_per_scale(*linear.scheme->weights);
}

at::Tensor QuantizingModifier::importance_of(const compression::Statistics* statistics) {
  if (statistics == nullptr) return {};
  const at::Tensor gram = statistics->of<compression::GramStatistic>();
  if (gram.defined()) return gram.diagonal();
  const at::Tensor squares = statistics->of<compression::SquareSum>();
  return squares.defined() ? squares.view({-1}) : squares;
}

std::optional<double> QuantizingModifier::value_to_share(const compression::LinearWeight& linear,
                                                         const compression::Statistics* statistics) const {
  if (!quant::has_global_scale(*linear.scheme->weights)) return std::nullopt;
  return quant::magnitude_for_global_scale(linear.weight, *linear.scheme->weights, observer_for(linear.scheme),
                                           importance_of(statistics));
}

kernels::ScaleFormat QuantizingModifier::scale_format(const compression::LinearWeight& linear) const {
  const std::optional<double> largest = linear.shared ? linear.shared : value_to_share(linear, nullptr);
  kernels::ScaleFormat stored = quant::scale_format(*linear.scheme->weights, linear.scale_dtype, largest.value_or(0));
  if (linear.from_mxfp4 && largest) stored.global = quant::global_scale_of_powers(*largest);
  return stored;
}

const QuantizingModifier::Group& QuantizingModifier::group_of(const quant::QuantizationScheme* scheme) const {
  for (const Group& group : groups_)
    if (&group.scheme == scheme) return group;
  throw InternalError("[modifier] the scheme is not one of this modifier's");
}

const quant::ObserverSettings& QuantizingModifier::observer_for(const quant::QuantizationScheme* scheme) const {
  return group_of(scheme).observer;
}

bool QuantizingModifier::any_observer(quant::Observer observer) const {
  return std::any_of(groups_.begin(), groups_.end(),
                     [&](const Group& group) { return group.observer.observer == observer; });
}

bool QuantizingModifier::any_weighs_inputs() const {
  return std::any_of(groups_.begin(), groups_.end(),
                     [](const Group& group) { return quant::weighs_inputs(group.observer.observer); });
}

bool QuantizingModifier::any_stored_values() const {
  return kv_cache_ || !attention_groups_.empty() || std::any_of(groups_.begin(), groups_.end(), [](const Group& group) {
           return quant::has_stored_inputs(group.scheme);
         });
}

compression::RangeStatisticPtr QuantizingModifier::input_range(const quant::QuantizationScheme& scheme) const {
  if (!quant::has_stored_inputs(scheme)) return nullptr;
  const quant::QuantizationArgs& inputs = *scheme.input_activations;
  return range_statistic(group_of(&scheme).input_observer, inputs,
                         quant::has_global_scale(inputs) ? *inputs.group_size : 0);
}

std::optional<compression::AttentionScheme> QuantizingModifier::attention_scheme(
    const quant::ModuleName& module) const {
  const auto described = [](const quant::QuantizationArgs& args, const quant::InputObserverSettings& observer,
                            const quant::QuantizationScheme* group) {
    const bool by_head = args.strategy == quant::Strategy::kAttentionHead;
    return compression::AttentionScheme{&args, group, [&args, observer, by_head](std::int64_t head_dim) {
                                          return range_statistic(observer, args, by_head ? head_dim : 0);
                                        }};
  };
  const bool ignored = ignore_->matches(module);
  if (const int found = ignored ? -1 : attention_targets_->group_of(module); found >= 0) {
    const AttentionGroup& group = attention_groups_[static_cast<std::size_t>(found)];
    return described(*group.scheme.input_activations, group.observer, &group.scheme);
  }
  if (kv_cache_) return described(kv_cache_->args, kv_cache_->observer, nullptr);
  return std::nullopt;
}

void QuantizingModifier::add_input_statistic(const compression::ValueFacts& facts,
                                             std::vector<compression::StatisticPtr>& wanted) const {
  if (facts.scheme == nullptr) return;
  if (compression::RangeStatisticPtr range = input_range(*facts.scheme)) wanted.push_back(std::move(range));
}

std::vector<kernels::OtherRows> QuantizingModifier::others_of(const compression::LinearWeight& linear,
                                                              const ObservedRows& observed) {
  std::vector<kernels::OtherRows> others;
  if (!linear.whole.defined()) return others;
  constexpr std::int64_t kRows = 256;  // few, because they may be copies
  const std::int64_t together = quant::rows_per_scale(*linear.scheme->weights);
  const std::int64_t step = (kRows + together - 1) / together * together;
  const auto add = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; row += step)
      others.emplace_back([&linear, &observed, row, count = std::min(step, end - row)] {
        const at::Tensor rows = linear.whole.narrow(0, row, count);
        return observed ? observed(rows, row) : rows;
      });
  };
  add(0, linear.first_row);
  add(linear.first_row + linear.weight.size(0), linear.whole.size(0));
  return others;
}

kernels::ChosenScales QuantizingModifier::observe(const compression::LinearWeight& linear, const at::Tensor& importance,
                                                  PhaseTimes& times, const ObservedRows& observed) const {
  return observe_by(observer_for(linear.scheme), linear, importance, times, observed);
}

kernels::ChosenScales QuantizingModifier::observe_by(const quant::ObserverSettings& settings,
                                                     const compression::LinearWeight& linear,
                                                     const at::Tensor& importance, PhaseTimes& times,
                                                     const ObservedRows& observed) const {
  const auto phase = times.measure("observe");
  times.add_flops("observe",
                  quant::observe_flops(*linear.scheme->weights, settings, static_cast<double>(linear.weight.numel())));
  const kernels::ScaleFormat stored = scale_format(linear);
  at::Tensor exact;
  if (linear.from_mxfp4 && quant::has_global_scale(*linear.scheme->weights)) {
    exact = quant::exact_scales(linear.weight, *linear.scheme->weights->group_size, stored);
    if (exact.gt(0).all().item<bool>()) return {exact, {}};
  }
  kernels::ChosenScales chosen = quant::choose_scales(linear.weight, *linear.scheme->weights, settings, stored,
                                                      importance, others_of(linear, observed));
  if (exact.defined()) chosen.scale = at::where(exact.gt(0), exact, chosen.scale);
  return chosen;
}

void QuantizingModifier::require_finite(const std::vector<compression::LinearWeight>& linears,
                                        const std::vector<kernels::ChosenScales>& scales) {
  std::vector<at::Tensor> tensors;
  for (const kernels::ChosenScales& chosen : scales) tensors.push_back(chosen.scale);
  const std::vector<bool> finite = kernels::each_finite(tensors);
  for (std::size_t i = 0; i < linears.size(); ++i)
    if (!finite[i])
      throw RecipeError(
          "[modifier.observe] a scale of {} overflows the stored dtype; the weights are too large for this scheme",
          linears[i].module);
}

void QuantizingModifier::add_rounding_cost(const compression::LinearShape& linear,
                                           const quant::ObserverSettings& settings,
                                           compression::CompressionCost& cost) {
  const quant::QuantizationArgs& args = *linear.scheme->weights;
  const auto elements = static_cast<double>(linear.rows) * static_cast<double>(linear.columns);
  cost.flops["observe"] += quant::observe_flops(args, settings, elements);
  cost.flops["quantize"] += quant::round_flops(elements);
  // Codes are made after the search; counting both at once overestimates by its buffers, which are a few rows.
  const std::uint64_t result = quant::quantized_bytes(args, linear.rows, linear.columns, linear.dtype);
  const std::uint64_t search = quant::observe_workspace(args, settings, linear.rows, linear.columns, linear.device);
  const std::uint64_t rounding = kernels::round_workspace(
      linear.rows, linear.columns, quant::scale_grid(args, linear.rows, linear.columns), linear.device);
  cost.workspace_bytes = std::max(cost.workspace_bytes, cost.result_bytes + result + std::max(search, rounding));
  cost.result_bytes += result;
}

at::Tensor QuantizingModifier::round_to_nearest(const compression::LinearWeight& linear,
                                                const kernels::ChosenScales& scales, PhaseTimes& times) {
  const auto phase = times.measure("quantize");
  times.add_flops("quantize", quant::round_flops(static_cast<double>(linear.weight.numel())));
  const quant::QuantizationArgs& args = *linear.scheme->weights;
  return kernels::round_to_nearest(linear.weight, quant::scale_grid(args, linear.weight.size(0), linear.weight.size(1)),
                                   quant::element_of(args), scales);
}

compression::CompressedModule QuantizingModifier::result_of(const compression::LinearWeight& linear,
                                                            const at::Tensor& codes,
                                                            const kernels::ChosenScales& scales,
                                                            std::int64_t tokens) const {
  compression::CompressedModule result;
  result.weight = quant::to_quantized_weight(*linear.scheme->weights, codes, scales, scale_format(linear));
  result.report.module = linear.module;
  result.report.scheme = describe(*linear.scheme);
  result.report.tokens = tokens;
  return result;
}

std::string EmbeddingRounding::type() const { return owner_.type(); }

const quant::QuantizationScheme* EmbeddingRounding::scheme_for(const quant::ModuleName& module) const {
  return owner_.scheme_for(module);
}

std::optional<double> EmbeddingRounding::value_to_share(const compression::LinearWeight& embedding,
                                                        const compression::Statistics*) const {
  return owner_.QuantizingModifier::value_to_share(embedding, nullptr);
}

std::int64_t EmbeddingRounding::row_step(const compression::LinearShape& embedding) const {
  return owner_.QuantizingModifier::row_step(embedding);
}

quant::ObserverSettings EmbeddingRounding::observer_of(const quant::QuantizationScheme* scheme) const {
  return quant::without_inputs(*scheme->weights, owner_.observer_for(scheme));
}

compression::CompressionCost EmbeddingRounding::cost(const std::vector<compression::LinearShape>& embeddings) const {
  compression::CompressionCost cost;
  for (const compression::LinearShape& embedding : embeddings)
    QuantizingModifier::add_rounding_cost(embedding, observer_of(embedding.scheme), cost);
  return cost;
}

std::vector<compression::CompressedModule> EmbeddingRounding::compress(
    const std::vector<compression::LinearWeight>& embeddings, const compression::Statistics*, PhaseTimes& times) const {
  std::vector<compression::CompressedModule> results;
  std::vector<kernels::ChosenScales> chosen;
  for (const compression::LinearWeight& embedding : embeddings) {
    const quant::ObserverSettings settings = observer_of(embedding.scheme);
    chosen.push_back(owner_.observe_by(settings, embedding, {}, times, {}));
    const at::Tensor codes = QuantizingModifier::round_to_nearest(embedding, chosen.back(), times);
    results.push_back(owner_.result_of(embedding, codes, chosen.back(), /*tokens=*/0));
  }
  QuantizingModifier::require_finite(embeddings, chosen);
  return results;
}

std::string describe(const quant::QuantizationScheme& scheme) {
  const quant::QuantizationArgs& weights = *scheme.weights;
  std::string text =
      fmt::format("{}-bit {}", weights.num_bits, weights.type == quant::NumberType::kFloat ? "float" : "int");
  if (!weights.symmetric) text += " asymmetric";
  switch (weights.strategy) {
    case quant::Strategy::kTensorGroup:
    case quant::Strategy::kGroup:
      return text + fmt::format(", group {}", *weights.group_size);
    case quant::Strategy::kChannel:
      return text + ", channel";
    case quant::Strategy::kBlock:
      return text + fmt::format(", block {}x{}", (*weights.block_structure)[0], (*weights.block_structure)[1]);
    default:
      return text + ", tensor";
  }
}

}  // namespace layerpress::modifier
