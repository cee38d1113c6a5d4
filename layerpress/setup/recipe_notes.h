#pragma once

#include <string>
#include <vector>

#include "layerpress/setup/assignment.h"

namespace layerpress::setup {

/// What a recipe says that changes nothing, for the user: one line for all such arguments, and one for each group of modules
/// that ends with no module.
std::vector<std::string> recipe_notes(const Modifiers& modifiers, const compression::Assignments& assignments);

}  // namespace layerpress::setup
