#include "layerpress/modifier/propagation.h"

#include <ATen/ATen.h>

#include "layerpress/compression/cross_statistic.h"
#include "layerpress/compression/gram_statistic.h"
#include "layerpress/compression/output_cross_statistic.h"

namespace layerpress::modifier {
namespace {

double number_up_to(double most, const Json& value, const std::string& key, const std::string& where) {
  // Not json_get, which accepts true as 1.
  if (!value.is_number() || !(value.get<double>() >= 0 && value.get<double>() <= most))
    throw RecipeError("[recipe.modifier] {}.{} is {}; it must be a number between 0 and {:g}", where, key,
                      value.dump().substr(0, 40), most);
  return value.get<double>();
}

}  // namespace

std::optional<kernels::ErrorPropagation> parse_error_propagation(const Json& arguments, const std::string& where) {
  const auto found = arguments.find("error_propagation");
  if (found == arguments.end() || found->is_null()) return std::nullopt;
  if (found->is_boolean())
    return found->get<bool>() ? std::optional<kernels::ErrorPropagation>(std::in_place) : std::nullopt;
  const std::string place = where + ".error_propagation";
  if (!found->is_object())
    throw RecipeError("[recipe.modifier] {} must be true, false or a mapping of strength, damping and residual", place);
  kernels::ErrorPropagation options;
  for (const auto& [key, value] : found->items()) {
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
  const graph::ResidualWrite& write = *facts.write;
  return std::make_shared<compression::OutputCrossStatistic>(
      write.stream, write.weight, write.rows,
      kernels::ResidualShares{.inputs = options.strength, .stream = options.residual / write.factor});
}

bool compares_with_original(const compression::Statistics& statistics) {
  return statistics.of<compression::CrossStatistic>().defined() ||
         statistics.of<compression::OutputCrossStatistic>().defined();
}

Propagation::Propagation(const compression::Statistics& statistics, std::int64_t group_rows,
                         const kernels::ErrorPropagation& options, PhaseTimes& times) {
  const auto phase = times.measure("propagate");
  const at::Tensor gram = statistics.of<compression::GramStatistic>();
  const at::Tensor of_outputs = statistics.of<compression::OutputCrossStatistic>();
  mover_ = of_outputs.defined()
               ? kernels::WeightMover::make_for_outputs(gram, of_outputs, options.damping)
               : kernels::WeightMover::make(gram, statistics.of<compression::CrossStatistic>(), group_rows, options);
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

}  // namespace layerpress::modifier
