#pragma once

#include <string>

#include "layerpress/recipe/recipe.h"
#include "layerpress/setup/assignment/assignment.h"

namespace layerpress::setup {

/// The recipe that goes into a result: what the run's recipe leaves to defaults, activation orders and the observers of weights, is
/// said as the run chose it and as config.json has it, so that LLM Compressor does the same with it. Observers that only Layerpress
/// has are left out where they are its defaults.
recipe::Recipe written_recipe(const recipe::Recipe& recipe, const Modifiers& modifiers);

/// recipe.yaml, or a GGUF's key for it: the written recipe, and in comments that of a source that was itself made by one.
std::string recipe_text(const OpenedModel& source, const recipe::Recipe& recipe, const Modifiers& modifiers);
std::string with_earlier_recipe(const std::string& recipe, const OpenedModel& source);
/// The text that a model was made by, with line ends and control characters as such comments have them, or why it is none; "": the
/// model has none.
std::string recipe_of(const OpenedModel& model);
/// The text that another one has in comments; "": none.
std::string earlier_recipe(const std::string& text);

}  // namespace layerpress::setup
