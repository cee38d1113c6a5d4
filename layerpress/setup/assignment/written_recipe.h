#pragma once

#include "layerpress/recipe/recipe.h"
#include "layerpress/setup/assignment/assignment.h"

namespace layerpress::setup {

/// The recipe that goes into a result: what the run's recipe leaves to defaults, activation orders and the observers of weights, is
/// said as the run chose it and as config.json has it, so that LLM Compressor does the same with it. Observers that only Layerpress
/// has are left out where they are its defaults.
recipe::Recipe written_recipe(const recipe::Recipe& recipe, const Modifiers& modifiers);

}  // namespace layerpress::setup
