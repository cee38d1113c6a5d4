#include "layerpress/recipe/separate_scaling.h"

#include <algorithm>
#include <array>

#include "layerpress/base/error.h"

namespace layerpress::recipe {
namespace {

/// Which modules are quantized, without how, says nothing; users mean the modifier behind.
void require_scheme(const ModifierEntry& quantizer) {
  const OrderedJson& arguments = quantizer.arguments;
  if (arguments.empty() || json_has(arguments, "scheme") || json_has(arguments, "config_groups") ||
      json_has(arguments, "kv_cache_scheme"))
    return;
  throw RecipeError(
      "[recipe.parse] {}: an AWQModifier without a scheme only rescales, so {} has no meaning; give it to the modifier "
      "that quantizes",
      quantizer.where, arguments.items().begin().key());
}

}  // namespace

Recipe with_separate_scaling(const Recipe& recipe) {
  constexpr std::array kOfQuantizer = {
      "config_groups",   "targets",        "ignore",          "scheme",   "kv_cache_scheme",
      "weight_observer", "input_observer", "output_observer", "observer", "bypass_divisibility_checks"};
  Recipe result;
  for (const ModifierEntry& entry : recipe.modifiers) {
    if (entry.type != "AWQModifier" || !entry.arguments.is_object()) {
      result.modifiers.push_back(entry);
      continue;
    }
    ModifierEntry scaling{entry.type, OrderedJson::object(), entry.where};
    ModifierEntry quantizer{"QuantizationModifier", OrderedJson::object(), entry.where};
    for (const auto& [key, value] : entry.arguments.items()) {
      const bool is_other = std::find(kOfQuantizer.begin(), kOfQuantizer.end(), key) != kOfQuantizer.end();
      (is_other ? quantizer : scaling).arguments[key] = value;
    }
    require_scheme(quantizer);
    result.modifiers.push_back(std::move(scaling));
    if (!quantizer.arguments.empty()) result.modifiers.push_back(std::move(quantizer));
  }
  return result;
}

}  // namespace layerpress::recipe
