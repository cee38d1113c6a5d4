#include "layerpress/quant/scheme_name.h"

#include <fmt/format.h>

#include <tuple>

namespace layerpress::quant {
namespace {

/// Whether both round to the same numbers, `a` and `b` being the arguments of weights or of activations.
bool same_numbers(const std::optional<QuantizationArgs>& a, const std::optional<QuantizationArgs>& b,
                  bool compare_groups = true) {
  if (!a || !b) return a.has_value() == b.has_value();
  const auto numbers = [](const QuantizationArgs& args) {
    return std::tie(args.num_bits, args.type, args.symmetric, args.strategy, args.block_structure, args.dynamic);
  };
  return numbers(*a) == numbers(*b) && (!compare_groups || a->group_size == b->group_size) &&
         a->scale_dtype == b->scale_dtype;
}

}  // namespace

std::string scheme_name(const QuantizationScheme& scheme) {
  std::string otherwise_grouped;
  for (const std::string& name : preset_names()) {
    const QuantizationScheme preset = preset_scheme(name);
    if (!preset.weights || !same_numbers(preset.input_activations, scheme.input_activations)) continue;
    if (same_numbers(preset.weights, scheme.weights)) return name;
    if (otherwise_grouped.empty() && same_numbers(preset.weights, scheme.weights, /*compare_groups=*/false))
      otherwise_grouped = fmt::format("{} (group {})", name, scheme.weights->group_size.value_or(0));
  }
  return otherwise_grouped;
}

bool same_numbers(const QuantizationScheme& a, const QuantizationScheme& b) {
  return same_numbers(a.weights, b.weights) && same_numbers(a.input_activations, b.input_activations);
}

}  // namespace layerpress::quant
