#include "layerpress/modifier/quantizing/gptq.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "layerpress/base/text.h"
#include "layerpress/compression/statistics/gram_statistic.h"
#include "layerpress/modifier/quantizing/block_quantizer.h"
#include "layerpress/modifier/quantizing/gptq_modifier.h"
#include "layerpress/modifier/quantizing/output_power.h"

namespace layerpress::modifier {

using compression::CompressedModule;
using compression::LinearWeight;

namespace {

const std::vector<Argument>& gptq_arguments() {
  static const std::vector<Argument> kArguments =
      joined(QuantizingModifier::shared_arguments(), {{"block_size", "int"},
                                                      {"dampening_frac", "float"},
                                                      {"actorder", "str | None"},
                                                      {"batched_quantization", "int | str | None"},
                                                      {"error_propagation", "bool | dict[str, float] | None"},
                                                      {"coordinate_descent", "bool | dict[str, float] | None"},
                                                      {"rounded_inputs", "bool | None"}});
  return kArguments;
}

/// LLM Compressor takes null for neither.
template <typename Number>
void refuse_null(const Json& arguments, const char* key, Number usual, const std::string& where) {
  if (arguments.contains(key) && arguments[key].is_null())
    throw RecipeError("[recipe.modifier] {}: {} is null; give a number, or leave it out for {}", where, key, usual);
}

/// Whether batched_quantization says how many groups to solve at once, which the runtime decides.
bool names_batches(const Json& arguments, const std::string& where) {
  const auto found = arguments.find("batched_quantization");
  if (found == arguments.end() || found->is_null() || *found == Json("auto")) return false;
  // LLM Compressor reads true as the number 1.
  if (*found != Json(true) && (!found->is_number_integer() || found->get<std::int64_t>() < 1))
    throw RecipeError(
        "[recipe.modifier] {}: batched_quantization must be \"auto\", a positive whole number, true or null", where);
  return true;
}

std::optional<kernels::CoordinateDescent> parse_coordinate_descent(const Json& arguments, const std::string& where) {
  const auto found = arguments.find("coordinate_descent");
  if (found == arguments.end() || found->is_null() || *found == Json(false)) return std::nullopt;
  kernels::CoordinateDescent options;
  if (*found == Json(true)) return options;
  const std::string place = where + ".coordinate_descent";
  if (!found->is_object())
    throw RecipeError("[recipe.modifier] {} must be true, false or a mapping of sweeps and damping", place);
  (void)check_arguments(*found, place, {{"sweeps", "int"}, {"damping", "float"}});
  options.sweeps = json_get_or<int>(*found, "sweeps", place, options.sweeps);
  options.damping = json_get_or<double>(*found, "damping", place, options.damping);
  if (options.sweeps < 1 || options.sweeps > 100)
    throw RecipeError("[recipe.modifier] {}.sweeps must be from 1 to 100", place);
  if (!(options.damping >= 0) || options.damping > 1e6)
    throw RecipeError("[recipe.modifier] {}.damping must be from 0 to 1e6", place);
  return options;
}

/// LLM Compressor's rule for the modifier's actorder and those of its groups: what is given at one place holds, also a null
/// of the modifier; where nothing is given it is "static". Given twice it must be the same.
class ActivationOrder {
 public:
  ActivationOrder(const Json& arguments, const std::string& where) : given_(arguments.contains("actorder")) {
    if (!given_ || arguments["actorder"].is_null()) return;
    order_ = json_get<std::string>(arguments, "actorder", where);
    if (*order_ == "group" || *order_ == "dynamic")
      throw RecipeError(
          "[recipe.modifier] {}: actorder '{}' needs a stored index per column, which the format no longer has; write "
          "static, weight or null",
          where, *order_);
    if (!is_static(order_))
      throw RecipeError("[recipe.modifier] {}: actorder '{}' is not supported; use static, weight or null", where,
                        *order_);
  }

  std::optional<std::string> operator()(const std::optional<std::string>& own, const std::string& where) const {
    if (!own) return given_ ? order_ : "static";
    // Both words mean one thing, and LLM Compressor itself writes recipes with one here and the other there.
    if (given_ && is_static(order_) != is_static(own))
      throw RecipeError("[recipe.modifier] {}: actorder is '{}' and the modifier's is null; give only one of them",
                        where, *own);
    return own;
  }

 private:
  static bool is_static(const std::optional<std::string>& order) { return order == "static" || order == "weight"; }
  bool given_ = false;
  std::optional<std::string> order_;
};

}  // namespace

GptqModifier::GptqModifier(const OrderedJson& arguments, const std::string& where, BlockSolverOf block_solver,
                           quant::Observer default_observer)
    : QuantizingModifier(arguments, where, gptq_arguments(), default_observer),
      block_solver_(block_solver),
      propagation_(parse_error_propagation(arguments, where)) {
  const Json plain(arguments);
  refuse_null(plain, "block_size", 128, where);
  refuse_null(plain, "dampening_frac", 0.01, where);
  block_size_ = json_get_or<std::int64_t>(plain, "block_size", where, 128);
  dampening_ = json_get_or<double>(plain, "dampening_frac", where, 0.01);
  if (block_size_ < 1) throw RecipeError("[recipe.modifier] {}: block_size must be positive", where);
  if (!(dampening_ >= 0) || dampening_ > 1e6)
    throw RecipeError("[recipe.modifier] {}: dampening_frac must be from 0 to 1e6", where);
  descent_ = parse_coordinate_descent(plain, where);
  rounded_inputs_ = json_get_or<bool>(plain, "rounded_inputs", where, false);
  if (names_batches(plain, where)) without_effect_.emplace_back("batched_quantization");
  set_actorder(ActivationOrder(plain, where));
}

std::vector<CompressedModule> GptqModifier::compress(const std::vector<LinearWeight>& linears,
                                                     const compression::Statistics* statistics,
                                                     PhaseTimes& times) const {
  require_statistics(linears, statistics);
  std::vector<CompressedModule> results(linears.size());
  Solution solution{*statistics, {linears, *statistics, moves(linears) ? propagation_ : std::nullopt, times}, {}};
  for (const auto& [order, stacks] : stacks_of(linears)) {
    solution.factorization = {};  // before there is another one
    solution.factorization =
        factorize_with_fallbacks(statistics->of<compression::GramStatistic>(), dampening_, order, times);
    for (const Stack& stack : stacks) compress_stack(linears, stack, solution, times, results);
  }
  return results;
}

std::vector<compression::StatisticPtr> GptqModifier::statistics_wanted(const compression::ValueFacts& facts) const {
  std::vector<compression::StatisticPtr> wanted = {std::make_shared<compression::GramStatistic>()};
  if (propagation_ && facts.differs) wanted.push_back(difference_wanted(facts, *propagation_));
  add_input_statistic(facts, wanted);
  return wanted;
}

void GptqModifier::compress_stack(const std::vector<LinearWeight>& linears, const Stack& stack,
                                  const Solution& solution, PhaseTimes& times,
                                  std::vector<CompressedModule>& results) const {
  double loss = 0;
  std::int64_t rows = 0;
  for (const Stack& batch : batches_of(linears, stack, solution.propagation.moves())) {
    loss += compress_batch(linears, batch, solution, times, results);
    for (const std::size_t i : batch) rows += rows_of(linears[i]);
  }
  const std::int64_t tokens = solution.statistics.tokens;
  if (!solution.factorization.factor || tokens == 0) return;
  double power = 0;
  for (const std::size_t i : stack)
    power += static_cast<double>(rows_of(linears[i])) *
             mean_output_power(linears[i].weight, solution.statistics.of<compression::GramStatistic>(), tokens);
  for (const std::size_t i : stack) {
    results[i].report.output_error = loss / static_cast<double>(rows) / static_cast<double>(tokens);
    results[i].report.output_power = power / static_cast<double>(rows);
  }
}

double GptqModifier::compress_batch(const std::vector<LinearWeight>& linears, const Stack& batch,
                                    const Solution& solution, PhaseTimes& times,
                                    std::vector<CompressedModule>& results) const {
  const quant::QuantizationScheme& scheme = *linears[batch.front()].scheme;
  const at::Tensor importance = solution.statistics.of<compression::GramStatistic>().diagonal();
  std::vector<LinearWeight> members;
  for (const std::size_t i : batch) members.push_back(solution.propagation.moved(linears[i], times));
  const auto& factor = solution.factorization.factor;
  const auto search =
      factor ? group_search(scheme, scale_format(members.front()), columns_of(members.front())) : std::nullopt;
  const auto moved = [&](const at::Tensor& rows, std::int64_t first) {
    return solution.propagation.moved(rows, first, times);
  };
  std::vector<kernels::ChosenScales> scales;
  for (const LinearWeight& member : members)
    scales.push_back(search ? scales_to_choose(member) : observe(member, importance, times, moved));
  if (!search) require_finite(members, scales);
  std::vector<at::Tensor> codes;
  double loss = 0;
  if (factor)
    codes = solve(members, scales, *factor, search, solution.statistics, loss, times);
  else
    for (std::size_t m = 0; m < members.size(); ++m) codes.push_back(round_to_nearest(members[m], scales[m], times));
  for (std::size_t m = 0; m < members.size(); ++m) {
    CompressedModule& result = results[batch[m]];
    result = result_of(members[m], codes[m], scales[m], solution.statistics.tokens);
    result.report.fallback = join_both(solution.factorization.fallback, solution.propagation.fallback());
  }
  return loss;
}

kernels::ChosenScales GptqModifier::scales_to_choose(const LinearWeight& linear) {
  const quant::QuantizationArgs& args = *linear.scheme->weights;
  kernels::ChosenScales scales;
  scales.scale = at::empty(quant::scale_shape(args, rows_of(linear), columns_of(linear)),
                           linear.weight.options().dtype(at::kFloat));
  if (!args.symmetric) scales.zero_point = at::empty_like(scales.scale);
  return scales;
}

std::vector<at::Tensor> GptqModifier::solve(const std::vector<LinearWeight>& members,
                                            const std::vector<kernels::ChosenScales>& scales,
                                            const kernels::HessianFactor& factor,
                                            const std::optional<kernels::GroupSearch>& search,
                                            const compression::Statistics& statistics, double& loss,
                                            PhaseTimes& times) const {
  const auto phase = times.measure("solve");
  const quant::QuantizationArgs& args = *members.front().scheme->weights;
  const std::vector<kernels::GptqWeight> weights = problem_of(members, scales);
  add_solve_flops(members, search, times);
  kernels::GptqResult result = kernels::gptq(weights, factor, quant::element_of(args), block_size_, search);
  if (search) require_finite(members, scales);
  loss = result.loss;
  if (std::all_of(members.begin(), members.end(), [&](const LinearWeight& member) { return descends(member); })) {
    for (const LinearWeight& member : members)
      times.add_flops("solve", kernels::descend_flops(static_cast<double>(member.weight.numel()),
                                                      static_cast<double>(columns_of(member)), *descent_));
    loss = kernels::descend(weights, statistics.of<compression::GramStatistic>(), quant::element_of(args), *descent_,
                            dampening_, result.codes);
  }
  return std::move(result.codes);
}

std::vector<kernels::GptqWeight> GptqModifier::problem_of(const std::vector<LinearWeight>& linears,
                                                          const std::vector<kernels::ChosenScales>& scales) {
  std::vector<kernels::GptqWeight> weights;
  for (std::size_t i = 0; i < linears.size(); ++i) {
    const kernels::ScaleGrid grid =
        quant::scale_grid(*linears[i].scheme->weights, rows_of(linears[i]), columns_of(linears[i]));
    weights.push_back({linears[i].weight,
                       {scales[i].scale, scales[i].zero_point, grid.block_columns, grid.block_rows},
                       linears[i].keeps_zeros});
  }
  return weights;
}

void GptqModifier::add_solve_flops(const std::vector<LinearWeight>& linears,
                                   const std::optional<kernels::GroupSearch>& search, PhaseTimes& times) {
  for (const LinearWeight& linear : linears) {
    const auto columns = static_cast<double>(columns_of(linear));
    const kernels::ScaleGrid grid = quant::scale_grid(*linear.scheme->weights, rows_of(linear), columns_of(linear));
    times.add_flops("solve",
                    solve_flops(static_cast<double>(rows_of(linear)) * columns, columns, grid.block_columns, search));
  }
}

double GptqModifier::solve_flops(double elements, double columns, std::int64_t group_columns,
                                 const std::optional<kernels::GroupSearch>& search) {
  const double candidates = search ? static_cast<double>(search->shrink.size()) : 0;
  return elements * (columns + candidates * static_cast<double>(group_columns));
}

void GptqModifier::require_statistics(const std::vector<LinearWeight>& linears,
                                      const compression::Statistics* statistics) {
  if (statistics == nullptr) throw InternalError("[modifier.gptq] no statistics for {}", linears.front().module);
}

std::unique_ptr<compression::Quantizer> make_gptq_modifier(const OrderedJson& arguments, const std::string& where,
                                                           BlockSolverOf block_solver) {
  return std::make_unique<GptqModifier>(arguments, where, block_solver);
}

Kind gptq_modifier() {
  const auto make_of = [](const OrderedJson& arguments, const std::string& where) {
    return names_block_types(arguments) ? make_block_quantizer(arguments, where, BlockRounding::kGptq)
                                        : make_gptq_modifier(arguments, where);
  };
  return {"GPTQModifier", make_of, gptq_arguments()};
}

}  // namespace layerpress::modifier
