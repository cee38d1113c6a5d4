#pragma once

#include "layerpress/setup/assignment/assignment.h"
#include "layerpress/setup/opening/open_model.h"

namespace layerpress::setup {

/// Applies the rewrites among a recipe's modifiers, in order. What they change is no longer what the source stores quantized. Throws
/// RecipeError if another modifier comes before one of them.
void apply_rewrites(const Modifiers& modifiers, OpenedModel& model);

}  // namespace layerpress::setup
