#include "layerpress/quant/rounding/observer.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cctype>
#include <cmath>

#include "layerpress/base/text.h"
#include "layerpress/kernels/finite.h"
#include "layerpress/kernels/numbers/scale_rounding.h"
#include "layerpress/kernels/solver/gptq.h"
#include "layerpress/quant/rounding/row_transfer.h"
#include "layerpress/quant/weight_numbers.h"

namespace layerpress::quant {
namespace {

/// The largest and the smallest range that are tried for weights with fewer steps at small values, as multiples of theirs.
constexpr double kWidest = 1.5, kSmallest = 0.6, kSmallestOfTwoBits = 0.4;

/// The argument of Layerpress's own observers that allows negative scales.
constexpr const char* kFullRange = "full_range";

double positive_number(const Json& kwargs, const char* key, double otherwise, const std::string& where) {
  const auto found = kwargs.find(key);
  if (found == kwargs.end()) return otherwise;
  if (!found->is_number() || !(found->get<double>() > 0))
    throw RecipeError("[recipe.observer] {}: '{}' must be a positive number, is {}", where, key, found->dump());
  return found->get<double>();
}

/// Whether the ranges are Layerpress's own.
bool sums_squares(Observer observer) {
  return observer == Observer::kSquaredError || observer == Observer::kHessian || observer == Observer::kGptq;
}

/// Whether they are LLM Compressor's.
bool has_grid(Observer observer) { return observer == Observer::kMse || observer == Observer::kImportance; }

/// The largest range that is tried for a group, as a multiple of its weights' range. e2m1's steps grow with the values, so that a
/// wider range may have smaller errors: a group whose largest weight is 4 instead of 6 has finer steps below.
double widest_range(const QuantizationArgs& args, const ObserverSettings& settings) {
  return sums_squares(settings.observer) && has_global_scale(args) ? kWidest : 1;
}

double smallest_range(const QuantizationArgs& args) {
  return args.type == NumberType::kInt && args.num_bits <= 2 ? kSmallestOfTwoBits : kSmallest;
}

kernels::RangeRule rule_of(const QuantizationArgs& args, const ObserverSettings& settings) {
  kernels::RangeRule rule = range_rule(args);
  rule.signed_scale = settings.signed_scales.value_or(false);
  return rule;
}

kernels::ScaleSearch search_of(const QuantizationArgs& args, const ObserverSettings& settings) {
  kernels::ScaleSearch search;
  if (has_power_scales(args) && settings.observer != Observer::kImportance) {
    // The range's scale has no other neighbours.
    if (settings.observer != Observer::kMinMax) search.shrink = {1.0, 2.0, 0.5};
    if (settings.observer == Observer::kMse) search.exponent = settings.norm, search.expand = settings.expand;
    return search;
  }
  if (has_grid(settings.observer)) {
    search.shrink.clear();
    const int steps = std::max(1, static_cast<int>(settings.maxshrink * settings.grid));
    const int tried = settings.observer == Observer::kImportance ? steps + 1 : steps;
    for (int i = 0; i < tried; ++i) search.shrink.push_back(1.0 - i / settings.grid);
    search.exponent = settings.norm;
    search.patience = settings.patience;
    search.expand = settings.expand;
  } else if (sums_squares(settings.observer)) {
    // Each candidate costs a solve of the group, and twice as many give no better result. NVFP4's are not solved.
    const int steps = has_global_scale(args) ? 30 : settings.observer == Observer::kGptq ? 10 : 20;
    search.expand = widest_range(args, settings);
    const double last = smallest_range(args) / search.expand;
    search.shrink.clear();
    for (int i = 0; i <= steps; ++i) search.shrink.push_back(1.0 - (1.0 - last) * i / steps);
  }
  return search;
}

/// LLM Compressor's registry ignores case and reads a hyphen as an underscore.
std::string registered(std::string name) {
  for (char& c : name) c = c == '-' ? '_' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return name;
}

/// What errors are weighted with; undefined: nothing.
at::Tensor weights_of_errors(const QuantizationArgs& args, const ObserverSettings& settings,
                             const at::Tensor& importance) {
  if (!weighs_inputs(settings.observer)) return {};
  if (settings.observer != Observer::kImportance) return importance;
  if (args.strategy == Strategy::kTensor || args.strategy == Strategy::kBlock || !importance.defined()) return {};
  const auto total = importance.sum(at::kDouble).item<double>();
  return std::isfinite(total) && total > 0 ? importance : at::Tensor();
}

/// Scales in the weight's dtype; 0 for groups of zeros.
at::Tensor scales_of_chosen_ranges(const at::Tensor& weight, const QuantizationArgs& args,
                                   const ObserverSettings& settings, const at::Tensor& importance,
                                   const std::vector<kernels::OtherRows>& others) {
  const kernels::ScaleGrid grid = scale_grid(args, weight.size(0), weight.size(1));
  const kernels::ScaleFormat plain = kernels::scales_of_dtype(weight.scalar_type());
  kernels::ChosenScales chosen = kernels::search_scales(weight, grid, range_rule(args), search_of(args, settings),
                                                        plain, weights_of_errors(args, settings, importance), others);
  constexpr std::int64_t kRows = 1024;  // limits the magnitudes in memory
  for (std::int64_t first = 0; first < weight.size(0); first += kRows) {
    const std::int64_t count = std::min(kRows, weight.size(0) - first);
    const at::Tensor groups = weight.narrow(0, first, count).view({count, -1, grid.block_columns});
    chosen.scale.narrow(0, first, count).masked_fill_(groups.abs().amax(-1).eq(0), 0);
  }
  return chosen.scale;
}

kernels::ChosenScales chosen_before_rounding(const at::Tensor& weight, const QuantizationArgs& args,
                                             const ObserverSettings& settings, const kernels::ScaleFormat& stored,
                                             const at::Tensor& importance,
                                             const std::vector<kernels::OtherRows>& others) {
  kernels::ChosenScales chosen;
  const at::Tensor global = at::full({1}, stored.global, weight.options().dtype(at::kFloat));
  chosen.scale =
      wide_scales(stored_scales(scales_of_chosen_ranges(weight, args, settings, importance, others), stored), global);
  chosen.scale.masked_fill_(chosen.scale.eq(0), kernels::smallest_scale(stored));
  return chosen;
}

}  // namespace

ObserverSettings parse_observer(const std::string& given, const Json& kwargs, const std::string& where) {
  const std::string name = registered(given);
  ObserverSettings settings;
  if (name == "minmax" || name == "memoryless_minmax" || name == "static_minmax") {
    settings.observer = Observer::kMinMax;
  } else if (name == "mse" || name == "memoryless_mse") {
    settings = {.observer = Observer::kMse, .global_from_chosen = true};
  } else if (name == "nvfp4_expanded_mse" || name == "fouroversix") {
    settings = {.observer = Observer::kMse,
                .maxshrink = 1 - 0.8 / 1.8,
                .grid = 200,
                .patience = 1000,
                .expand = 1.8,
                .global_from_chosen = true};
  } else if (name == "squared_error") {
    settings.observer = Observer::kSquaredError;
  } else if (name == "hessian") {
    settings.observer = Observer::kHessian;
  } else if (name == "imatrix_mse") {
    settings = {
        .observer = Observer::kImportance, .maxshrink = 0.95, .grid = 20, .norm = 3, .global_from_chosen = true};
  } else if (name == "nvfp4_expanded_imatrix") {
    settings = {.observer = Observer::kImportance,
                .maxshrink = 1 - 0.8 / 1.8,
                .grid = 200,
                .patience = 1000,
                .expand = 1.8,
                .global_from_chosen = true};
  } else if (name == "gptq") {
    settings.observer = Observer::kGptq;
  } else {
    const std::vector<std::string> implemented = {
        "minmax",        "mse",     "imatrix_mse", "nvfp4_expanded_mse", "nvfp4_expanded_imatrix",
        "squared_error", "hessian", "gptq"};
    throw RecipeError("[recipe.observer] {}: observer '{}' is not implemented; {}", where, given,
                      nearest_or_all(name, implemented));
  }
  for (const auto& [key, value] : kwargs.items()) {
    // A weight is observed only once, so a moving average has no effect.
    const bool own = settings.observer == Observer::kMse
                         ? key == "triton_error_buffer"  // when LLM Compressor's kernel for GPUs gives up a group
                         : key == "strict";
    if (sums_squares(settings.observer) && key == kFullRange) continue;
    const bool known = has_grid(settings.observer) && (own || key == "maxshrink" || key == "grid" || key == "norm" ||
                                                       key == "patience" || key == "expand");
    if (!known && key != "averaging_constant")
      throw RecipeError("[recipe.observer] {}: observer '{}' has no argument '{}'", where, name, key);
  }
  if (kwargs.contains(kFullRange)) settings.signed_scales = json_get<bool>(kwargs, kFullRange, where);
  settings.maxshrink = positive_number(kwargs, "maxshrink", settings.maxshrink, where);
  settings.grid = positive_number(kwargs, "grid", settings.grid, where);
  settings.norm = positive_number(kwargs, "norm", settings.norm, where);
  settings.expand = positive_number(kwargs, "expand", settings.expand, where);
  const bool has_patience = settings.observer == Observer::kMse || kwargs.value("patience", Json()) != Json(0);
  settings.patience =
      has_patience
          ? static_cast<int>(std::ceil(std::min(positive_number(kwargs, "patience", settings.patience, where), 1e9)))
          : 0;
  if (settings.observer == Observer::kImportance && kwargs.value("strict", Json(false)) != Json(false))
    throw RecipeError(
        "[recipe.observer] {}: strict is not implemented: where inputs say nothing about a weight, its errors are not "
        "weighted; leave it out",
        where);
  if (settings.maxshrink >= 1 || settings.grid > 10'000)
    throw RecipeError("[recipe.observer] {}: maxshrink must be below 1 and grid at most 10000", where);
  if (settings.expand < 1)
    throw RecipeError("[recipe.observer] {}: expand must be at least 1, is {}", where, settings.expand);
  return settings;
}

void settle_signed_scales(QuantizationScheme& scheme, ObserverSettings& settings, const std::string& where) {
  QuantizationArgs& weights = *scheme.weights;
  if (settings.signed_scales == true && !weights.is_symmetric_integer())
    throw RecipeError("[recipe.observer] {}: {} is for symmetric integers", where, kFullRange);
  if (!settings.signed_scales) {
    settings.signed_scales = has_signed_scales(scheme, settings.observer);
    if (*settings.signed_scales && settings.observer == Observer::kHessian) weights.observer_kwargs[kFullRange] = true;
  }
}

bool has_signed_scales(const QuantizationScheme& scheme, Observer observer) {
  const QuantizationArgs& weights = *scheme.weights;
  return sums_squares(observer) && weights.is_symmetric_integer() && weights.num_bits <= 4 && !scheme.input_activations;
}

bool weighs_inputs(Observer observer) {
  return observer == Observer::kHessian || observer == Observer::kGptq || observer == Observer::kImportance;
}

QuantizationArgs with_portable_observer(QuantizationArgs weights) {
  if (weights.observer != observer_name(Observer::kHessian)) return weights;
  weights.observer = observer_name(Observer::kImportance);
  weights.observer_kwargs.update({{"norm", 2}, {"patience", 0}});  // and the ranges of search_of()
  if (has_power_scales(weights))                                   // twice the range, the range, half of it
    weights.observer_kwargs.update({{"expand", 2}, {"maxshrink", 0.75}, {"grid", 4}});
  else if (has_global_scale(weights))
    weights.observer_kwargs.update({{"expand", kWidest}, {"maxshrink", 0.6}, {"grid", 50}});
  else
    weights.observer_kwargs.update({{"maxshrink", 1 - smallest_range(weights)}, {"grid", 50}});
  return weights;
}

ObserverSettings observer_of_weights(const QuantizationArgs& weights, const std::string& where) {
  QuantizationArgs hessian = weights;
  hessian.observer = observer_name(Observer::kHessian);
  hessian.observer_kwargs = Json::object();
  if (weights.observer_kwargs.contains(kFullRange))
    hessian.observer_kwargs[kFullRange] = weights.observer_kwargs[kFullRange];
  if (with_portable_observer(hessian) == weights) {
    ObserverSettings settings = parse_observer(*hessian.observer, hessian.observer_kwargs, where);
    settings.signed_scales =
        settings.signed_scales.value_or(false);  // LLM Compressor's scales, unless they say otherwise
    return settings;
  }
  return parse_observer(*weights.observer, weights.observer_kwargs, where);
}

std::string observer_name(Observer observer) {
  switch (observer) {
    case Observer::kMse:
      return "mse";
    case Observer::kSquaredError:
      return "squared_error";
    case Observer::kHessian:
      return "hessian";
    case Observer::kGptq:
      return "gptq";
    case Observer::kImportance:
      return "imatrix_mse";
    default:
      return "minmax";
  }
}

Observer observer_without_inputs(const QuantizationArgs& args) {
  return has_global_scale(args) || has_power_scales(args) ? Observer::kSquaredError : Observer::kMse;
}

ObserverSettings without_inputs(const QuantizationArgs& args, const ObserverSettings& settings) {
  return settings.observer == Observer::kHessian || settings.observer == Observer::kGptq
             ? ObserverSettings{.observer = observer_without_inputs(args)}
             : settings;
}

kernels::RangeRule range_rule(const QuantizationArgs& weights) {
  return {.element = element_of(weights), .symmetric = weights.symmetric};
}

kernels::ScaleGrid scale_grid(const QuantizationArgs& weights, std::int64_t rows, std::int64_t columns) {
  const ScaleBlock block = scale_block(weights, rows, columns);
  return {block.rows, block.columns};
}

kernels::ChosenScales choose_scales(const at::Tensor& weight, const QuantizationArgs& args,
                                    const ObserverSettings& settings, const kernels::ScaleFormat& stored,
                                    const at::Tensor& importance, const std::vector<kernels::OtherRows>& others) {
  if (weighs_inputs(settings.observer) && settings.observer != Observer::kImportance && !importance.defined())
    throw InternalError("[quant.observe] {} scales need the Gram matrix's diagonal", observer_name(settings.observer));
  if (settings.global_from_chosen && has_global_scale(args))
    return chosen_before_rounding(weight, args, settings, stored, importance, others);
  return kernels::search_scales(weight, scale_grid(args, weight.size(0), weight.size(1)), rule_of(args, settings),
                                search_of(args, settings), stored, weights_of_errors(args, settings, importance),
                                others);
}

double magnitude_for_global_scale(const at::Tensor& weight, const QuantizationArgs& args,
                                  const ObserverSettings& settings, const at::Tensor& importance) {
  // The global scale leaves room for the scale of the widest range.
  if (!settings.global_from_chosen) return widest_range(args, settings) * kernels::largest_magnitude(weight);
  const double greatest = scales_of_chosen_ranges(weight, args, settings, importance, {}).max().item<double>();
  return at::scalar_tensor(greatest * element_of(args).maximum, at::kFloat).to(weight.scalar_type()).item<double>();
}

std::optional<kernels::GroupSearch> group_search(const QuantizationArgs& args, const ObserverSettings& settings,
                                                 const kernels::ScaleFormat& stored, std::int64_t columns) {
  if (settings.observer != Observer::kGptq || rows_per_scale(args) != 1) return {};
  if (has_global_scale(args)) return {};  // weights that are solved together have different global scales
  if (!kernels::searches_groups(scale_grid(args, 1, columns))) return {};
  return kernels::GroupSearch{rule_of(args, settings), search_of(args, settings).shrink, stored};
}

std::uint64_t observe_workspace(const QuantizationArgs& args, const ObserverSettings& settings, std::int64_t rows,
                                std::int64_t columns, const at::Device& device) {
  const kernels::ScaleGrid grid = scale_grid(args, rows, columns);
  const auto candidates = static_cast<std::int64_t>(search_of(args, settings).shrink.size());
  return kernels::search_workspace(rows, columns, grid, range_rule(args), candidates, device);
}

double observe_flops(const QuantizationArgs& args, const ObserverSettings& settings, double elements) {
  const kernels::ScaleSearch search = search_of(args, settings);
  const auto candidates = search.shrink.size() > 1 ? static_cast<double>(search.shrink.size()) : 0.0;
  return elements * (2 + candidates * (search.exponent == 2 ? 12 : 48));
}

double round_flops(double elements) { return 8 * elements; }

QuantizedWeight to_quantized_weight(const QuantizationArgs& args, const at::Tensor& codes,
                                    const kernels::ChosenScales& scales, const kernels::ScaleFormat& stored) {
  QuantizedWeight weight;
  weight.codes = codes.view(code_dtype(args));
  const bool scalar = args.strategy == Strategy::kTensor;
  weight.scale = stored_scales(scales.scale, stored);
  if (has_global_scale(args)) weight.global_scale = at::full({1}, stored.global, codes.options().dtype(at::kFloat));
  if (scalar) weight.scale = weight.scale.reshape({1});
  if (!args.symmetric) {
    weight.zero_point = scales.zero_point.to(at::kChar);
    if (scalar) weight.zero_point = weight.zero_point.reshape({1});
  }
  return weight;
}

}  // namespace layerpress::quant
