#include "layerpress/modifier/quantizing/propagation.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "layerpress/compression/statistics/cross_statistic.h"
#include "layerpress/compression/statistics/gram_statistic.h"
#include "layerpress/compression/statistics/output_cross_statistic.h"

namespace layerpress::modifier {
namespace {

double number_up_to(double most, const Json& value, const std::string& key, const std::string& where) {
  // Not json_get, which accepts true as 1.
  if (!value.is_number() || !(value.get<double>() >= 0 && value.get<double>() <= most))
    throw RecipeError("[recipe.modifier] {}.{} is {}; it must be a number between 0 and {:g}", where, key,
                      value.dump().substr(0, 40), most);
  return value.get<double>();
}

class PropagationEdit : public compression::Edit {
 public:
  explicit PropagationEdit(const kernels::ErrorPropagation& options) : options_(options) {}

  std::string type() const override { return "error_propagation"; }
  std::string describe() const override { return ""; }
  std::vector<compression::StatisticPtr> statistics_wanted(const compression::ValueFacts& facts) const override {
    if (!facts.differs) return {};
    return {std::make_shared<compression::GramStatistic>(), difference_wanted(facts, options_)};
  }
  bool wants_original() const override { return true; }
  std::int64_t row_step(const compression::LinearShape&) const override { return 1; }

  compression::CompressionCost cost(const std::vector<compression::LinearShape>& linears) const override {
    compression::CompressionCost cost;
    const std::uint64_t held = add_propagation_cost(linears, cost);
    for (const compression::LinearShape& linear : linears)
      cost.result_bytes += sizeof(float) * static_cast<std::uint64_t>(linear.rows * linear.columns);
    const std::uint64_t moving = kernels::moving_workspace(linears.front().columns);
    cost.workspace_bytes = std::max(cost.workspace_bytes, held + cost.result_bytes + moving);
    return cost;
  }

  std::vector<compression::EditedWeight> edit(const std::vector<compression::LinearWeight>& linears,
                                              const compression::Statistics* statistics,
                                              PhaseTimes& times) const override {
    Propagation propagation;
    if (statistics != nullptr) propagation = {linears, *statistics, options_, times};
    std::vector<compression::EditedWeight> results;
    for (const compression::LinearWeight& linear : linears)
      results.push_back({.weight = propagation.moved(linear, times).weight, .fallback = propagation.fallback()});
    return results;
  }

 private:
  kernels::ErrorPropagation options_;
};

}  // namespace

std::optional<kernels::ErrorPropagation> parse_error_propagation(const Json& arguments, const std::string& where) {
  const auto found = arguments.find("error_propagation");
  if (found == arguments.end() || found->is_null()) return std::nullopt;
  if (found->is_boolean())
    return found->get<bool>() ? std::optional<kernels::ErrorPropagation>(std::in_place) : std::nullopt;
  const std::string place = where + ".error_propagation";
  if (!found->is_object())
    throw RecipeError("[recipe.modifier] {} must be true, false or a mapping of strength, damping and residual", place);
  return error_propagation_of(*found, place);
}

kernels::ErrorPropagation error_propagation_of(const Json& mapping, const std::string& place) {
  kernels::ErrorPropagation options;
  for (const auto& [key, value] : mapping.items()) {
    if (key == "strength")
      options.strength = number_up_to(2, value, key, place);
    else if (key == "damping")
      options.damping = number_up_to(1e6, value, key, place);
    else if (key == "residual")
      options.residual = number_up_to(2, value, key, place);
    else
      throw RecipeError("[recipe.modifier] {}: unknown key '{}'; choose from strength, damping, residual", place, key);
  }
  return options;
}

compression::StatisticPtr difference_wanted(const compression::ValueFacts& facts,
                                            const kernels::ErrorPropagation& options) {
  if (!facts.write || !(options.residual > 0)) return std::make_shared<compression::CrossStatistic>();
  return std::make_shared<compression::OutputCrossStatistic>(*facts.write, options.strength, options.residual);
}

Propagation::Propagation(const std::vector<compression::LinearWeight>& linears,
                         const compression::Statistics& statistics,
                         const std::optional<kernels::ErrorPropagation>& options, PhaseTimes& times) {
  const at::Tensor cross = statistics.of<compression::CrossStatistic>();
  const at::Tensor of_outputs = statistics.of<compression::OutputCrossStatistic>();
  if (!options || (!cross.defined() && !of_outputs.defined())) return;
  const auto phase = times.measure("propagate");
  const at::Tensor gram = statistics.of<compression::GramStatistic>();
  const std::int64_t group_rows = rows_of_group(linears);
  mover_ = of_outputs.defined() ? kernels::WeightMover::make_for_outputs(gram, of_outputs, *options)
                                : kernels::WeightMover::make(gram, cross, group_rows, *options);
  if (mover_)
    times.add_flops("propagate", kernels::mover_flops(group_rows, gram.size(0)));
  else
    fallback_ = "no error propagation (factorization failed)";
}

compression::LinearWeight Propagation::moved(compression::LinearWeight linear, PhaseTimes& times) const {
  linear.weight = moved(linear.weight, linear.first_row, times);
  return linear;
}

at::Tensor Propagation::moved(const at::Tensor& rows, std::int64_t first, PhaseTimes& times) const {
  if (!mover_) return rows;
  const auto phase = times.measure("propagate");
  times.add_flops("propagate", mover_->flops(rows.size(0)));
  return mover_->moved(rows, first);
}

std::uint64_t add_propagation_cost(const std::vector<compression::LinearShape>& linears,
                                   compression::CompressionCost& cost) {
  const std::int64_t columns = linears.front().columns, group_rows = rows_of_group(linears);
  double& flops = cost.flops["propagate"];
  flops += kernels::mover_flops(group_rows, columns);
  for (const compression::LinearShape& linear : linears)
    flops += kernels::moving_flops(linear.rows, group_rows, columns);
  cost.workspace_bytes = std::max(cost.workspace_bytes, kernels::mover_workspace(group_rows, columns));
  return kernels::mover_bytes(columns);
}

compression::EditPtr propagation_edit(const kernels::ErrorPropagation& options) {
  return std::make_shared<PropagationEdit>(options);
}

}  // namespace layerpress::modifier
