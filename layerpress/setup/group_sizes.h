#pragma once

#include "layerpress/oneshot.h"
#include "layerpress/setup/assignment.h"

namespace layerpress::setup {

/// Throws RecipeError if a group size does not divide the columns of a module, naming sizes that do and where to write them.
void check_group_sizes(const OneshotOptions& options, const OpenedModel& model, const Modifiers& modifiers,
                       const compression::Assignments& assignments);

}  // namespace layerpress::setup
