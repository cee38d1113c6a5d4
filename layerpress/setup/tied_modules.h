#pragma once

#include <string>
#include <vector>

#include "layerpress/setup/run_setup.h"

namespace layerpress::setup {

/// Linears that must have one scheme.
struct TiedModules {
  std::vector<std::string> modules;  ///< in the order of the graph
  std::vector<std::string>
      targets;  ///< of a recipe: their names; for experts patterns that match them and nothing else
};

/// All assigned linears, in the order of the graph: those that the target's engines run as one, and the experts of a layer, belong
/// together; each other linear stands alone.
std::vector<TiedModules> tied_modules(const RunSetup& setup);

}  // namespace layerpress::setup
