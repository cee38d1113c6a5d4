#pragma once

#include "layerpress/compression/assignments.h"
#include "layerpress/setup/assignment.h"

namespace layerpress::setup {

/// Puts the recipe's edits before the quantizers of the linears that they change; linears without one stay dense. Throws RecipeError
/// naming the module where a recipe edits what it has quantized before.
void add_edits(const OpenedModel& model, const Modifiers& modifiers, compression::Assignments& assignments);

}  // namespace layerpress::setup
