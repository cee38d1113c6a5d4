#pragma once

#include <string>
#include <vector>

#include "layerpress/setup/run_setup.h"

namespace layerpress::setup {

/// Notes for the user about parts of a recipe that have no effect or another one than they seem to have: arguments, groups that
/// get no module, entries that match no module, a default of --ignore that was replaced, routers that stay as they are.
std::vector<std::string> recipe_notes(const OneshotOptions& options, const RunSetup& setup);

}  // namespace layerpress::setup
