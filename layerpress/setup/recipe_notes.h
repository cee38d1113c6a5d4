#pragma once

#include <string>
#include <vector>

#include "layerpress/setup/assignment.h"

namespace layerpress::setup {

/// Notes for the user about parts of a recipe that have no effect: one line for all such arguments, and one for each
/// group that gets no module.
std::vector<std::string> recipe_notes(const Modifiers& modifiers, const compression::Assignments& assignments);

}  // namespace layerpress::setup
