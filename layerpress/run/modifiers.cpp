#include "layerpress/modifiers.h"

#include "layerpress/base/error.h"
#include "layerpress/modifier/all_modifiers.h"
#include "layerpress/recipe/gguf_recipe.h"
#include "layerpress/recipe/separate_scaling.h"

namespace layerpress {

std::vector<ModifierKind> list_modifiers() {
  std::vector<ModifierKind> kinds;
  for (const modifier::Kind& own : modifier::kinds()) {
    ModifierKind kind{own.type, {}};
    for (const modifier::Argument& argument : modifier::joined(own.arguments, modifier::lifecycle_arguments()))
      kind.arguments.emplace_back(argument.name, argument.type);
    kinds.push_back(std::move(kind));
  }
  for (const std::string& type : modifier::not_implemented()) kinds.push_back({type, {}, false});
  return kinds;
}

void check_modifier(const std::string& type, const OrderedJson& arguments) {
  if (!arguments.is_object() && !arguments.is_null())
    throw RecipeError("[recipe.modifier] {}: the arguments are not a mapping", type);
  if (type == "AWQModifier") {  // perhaps of the older kind, which also quantizes
    for (const recipe::ModifierEntry& entry : recipe::with_separate_scaling({{{type, arguments, type}}}).modifiers)
      (void)modifier::make_modifier(entry.type, entry.arguments, entry.where);
    return;
  }
  // A GPTQModifier without a scheme takes over that of the QuantizationModifier before it, which only a recipe shows.
  const bool inherits =
      type == "GPTQModifier" && !json_has(arguments, "scheme") && !json_has(arguments, "config_groups");
  OrderedJson complete = arguments;
  if (inherits) complete["scheme"] = "W4A16";  // any: the other arguments are checked
  // Groups that a mixture makes depend on the model: any.
  if (const recipe::ModifierEntry entry{type, arguments, type}; !recipe::mixture_of(entry, /*for_gguf=*/false).empty())
    complete = recipe::with_groups_of_mixture(entry, {{"any", {{"targets", {"Linear"}}, {"format", "Q8_0"}}}});
  (void)modifier::make_modifier(type, complete, type);
}

}  // namespace layerpress
