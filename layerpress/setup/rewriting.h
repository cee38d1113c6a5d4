#pragma once

#include "layerpress/rewrite/rewrite.h"
#include "layerpress/setup/assignment.h"
#include "layerpress/setup/open_model.h"

namespace layerpress::setup {

/// Makes the changes in an opened model, and adds their line to `rewrites`. A copy of a weight that is stored quantized is so, too.
void apply(const rewrite::Changes& changes, OpenedModel& model);

/// Applies the rewrites among a recipe's modifiers, in order. What they change is no longer what the source stores quantized. Throws
/// RecipeError if another modifier comes before one of them.
void apply_rewrites(const Modifiers& modifiers, OpenedModel& model);

}  // namespace layerpress::setup
