#include "layerpress/recipe/separate_scaling.h"

#include <algorithm>
#include <array>

namespace layerpress::recipe {

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
    result.modifiers.push_back(std::move(scaling));
    if (!quantizer.arguments.empty()) result.modifiers.push_back(std::move(quantizer));
  }
  return result;
}

}  // namespace layerpress::recipe
