#pragma once

#include <string>

#include "layerpress/recipe/recipe.h"
#include "layerpress/setup/assignment/assignment.h"

namespace layerpress::setup {

/// The recipe that goes into a result: what the run's recipe leaves to defaults, activation orders and the observers of weights, is
/// said as the run chose it and as config.json has it, so that LLM Compressor does the same with it. Observers that only Layerpress
/// has are left out where they are its defaults.
recipe::Recipe written_recipe(const recipe::Recipe& recipe, const Modifiers& modifiers);

/// recipe.yaml: the written recipe, and in comments the recipe.yaml of a source that was itself made by one.
std::string recipe_text(const OpenedModel& source, const recipe::Recipe& recipe, const Modifiers& modifiers);
/// The recipe.yaml of the source, which such a text has in comments; "": it has none.
std::string earlier_recipe(const std::string& text);

}  // namespace layerpress::setup
