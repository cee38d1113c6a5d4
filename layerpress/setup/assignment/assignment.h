#pragma once

#include <memory>
#include <string>
#include <vector>

#include "layerpress/compression/assignments.h"
#include "layerpress/recipe/recipe.h"
#include "layerpress/setup/opening/open_model.h"
#include "layerpress/target/target.h"

namespace layerpress::setup {

/// The modifiers of a recipe, in order.
using Modifiers = std::vector<std::unique_ptr<compression::Modifier>>;

Modifiers make_modifiers(const recipe::Recipe& recipe);

/// Decides which modifier compresses each linear and each embedding, and checks before any work all that could spoil the result:
/// some module is matched; no two modifiers claim one module; modules that the target's engines fuse (q/k/v, gate/up) are compressed in
/// one scheme or not at all. Throws RecipeError.
compression::Assignments assign(const OpenedModel& model, const Modifiers& modifiers, const target::Target& target);

/// One line for each kind of compressed module that the target's engines have no kernel for.
std::vector<std::string> kernel_warnings(const OpenedModel& model, const compression::Assignments& assignments,
                                         const target::Target& target);

}  // namespace layerpress::setup
