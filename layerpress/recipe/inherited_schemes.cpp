#include "layerpress/recipe/inherited_schemes.h"

#include <algorithm>

#include "layerpress/base/error.h"

namespace layerpress::recipe {
namespace {

constexpr const char* kGptq = "GPTQModifier";
constexpr const char* kQuantization = "QuantizationModifier";

OrderedJson value_of(const OrderedJson& arguments, const std::string& key) {
  const auto found = arguments.find(key);
  return found == arguments.end() ? OrderedJson() : *found;
}

bool names_scheme(const OrderedJson& arguments) {
  return json_has(arguments, "scheme") || json_has(arguments, "config_groups");
}

/// By LLM Compressor's own test: the defaults written out, as in its recipe.yaml, do not count.
bool describes_nothing(const OrderedJson& arguments) {
  const OrderedJson targets = value_of(arguments, "targets"), ignore = value_of(arguments, "ignore");
  const bool usual_targets = targets.is_null() || targets == "Linear" || targets == OrderedJson::array({"Linear"});
  return !names_scheme(arguments) && usual_targets && ignore.empty() && !json_has(arguments, "kv_cache_scheme");
}

/// The one actorder that all groups of a modifier have.
OrderedJson common_actorder(const ModifierEntry& entry) {
  const OrderedJson groups = value_of(entry.arguments, "config_groups");
  if (!groups.is_object()) return nullptr;  // a preset has none
  std::vector<OrderedJson> orders;
  for (const auto& [name, group] : groups.items())
    if (group.is_object() && group.contains("weights") && group["weights"].is_object())
      orders.push_back(value_of(group["weights"], "actorder"));
  const bool alike = std::adjacent_find(orders.begin(), orders.end(), std::not_equal_to<>()) == orders.end();
  if (!alike)
    throw RecipeError(
        "[recipe.parse] {}: groups differ in actorder, and a GPTQModifier without a scheme comes after it; give the "
        "groups to the GPTQModifier",
        entry.where);
  return orders.empty() ? OrderedJson() : orders.front();
}

ModifierEntry merged(const ModifierEntry& described, const ModifierEntry& gptq) {
  ModifierEntry entry{gptq.type, described.arguments, described.where};
  for (const auto& [key, value] : gptq.arguments.items()) {
    const bool of_scheme = key == "targets" || key == "ignore" || key == "scheme" || key == "config_groups" ||
                           key == "kv_cache_scheme" || key == "actorder";
    if (!of_scheme && value_of(entry.arguments, key).is_null()) entry.arguments[key] = value;
  }
  entry.arguments["actorder"] = common_actorder(described);
  return entry;
}

}  // namespace

Recipe with_inherited_schemes(const Recipe& recipe) {
  Recipe result;
  for (const ModifierEntry& entry : recipe.modifiers) {
    const auto gives = [](const ModifierEntry& earlier) {
      return earlier.type == kQuantization && names_scheme(earlier.arguments);
    };
    const bool takes_over = entry.type == kGptq && entry.arguments.is_object() && describes_nothing(entry.arguments) &&
                            std::any_of(result.modifiers.begin(), result.modifiers.end(), gives);
    if (!takes_over) {
      result.modifiers.push_back(entry);
      continue;
    }
    for (ModifierEntry& earlier : result.modifiers)
      if (gives(earlier)) earlier = merged(earlier, entry);
  }
  return result;
}

}  // namespace layerpress::recipe
