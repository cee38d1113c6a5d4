#pragma once

#include "layerpress/oneshot.h"
#include "layerpress/setup/assignment/assignment.h"

namespace layerpress::setup {

/// Throws RecipeError if a group size, or the block of a GGUF type, does not divide the columns of a module, naming what fits and where
/// to write it.
void check_group_sizes(const OneshotOptions& options, const OpenedModel& model, const Modifiers& modifiers,
                       const compression::Assignments& assignments);

}  // namespace layerpress::setup
