#include "layerpress/recipe/recipe.h"

#include "layerpress/modifier/all_modifiers.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/targets.h"

namespace layerpress::fuzz {
namespace {

/// YAML's escapes may make bytes that are not UTF-8.
std::string text_of(const Json& arguments) { return arguments.dump(-1, ' ', false, Json::error_handler_t::replace); }

/// Makes the modifiers. What is written for the output must be read as the same.
void write_again(const recipe::Recipe& recipe) {
  for (const recipe::ModifierEntry& entry : recipe.modifiers)
    (void)modifier::make_modifier(entry.type, entry.arguments, entry.where);
  const recipe::Recipe again = recipe::parse_recipe(recipe::to_yaml(recipe), "recipe.yaml");
  require(again.modifiers.size() == recipe.modifiers.size(), "a written recipe with other modifiers");
  for (std::size_t i = 0; i < again.modifiers.size(); ++i)
    require(again.modifiers[i].type == recipe.modifiers[i].type &&
                text_of(again.modifiers[i].arguments) == text_of(recipe.modifiers[i].arguments),
            "a written recipe with other arguments");
}

}  // namespace

void recipe_yaml(std::string_view input) { write_again(recipe::parse_recipe(std::string(input), "recipe.yaml")); }

void recipe_json(std::string_view input) { write_again(recipe::read_recipe_file(write_input("recipe.json", input))); }

}  // namespace layerpress::fuzz
