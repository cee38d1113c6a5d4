#pragma once

#include <string>
#include <utility>
#include <vector>

#include "layerpress/base/json.h"

namespace layerpress {

/// A modifier that recipes may name.
struct ModifierKind {
  std::string type;  ///< "GPTQModifier"
  /// Its arguments with the values that they take, as Python writes their types. Empty if the modifier is not implemented.
  std::vector<std::pair<std::string, std::string>> arguments;
  bool implemented = true;
};

/// All modifiers of LLM Compressor's recipes.
std::vector<ModifierKind> list_modifiers();

/// Throws RecipeError if no modifier `type` with these arguments can be in a recipe.
void check_modifier(const std::string& type, const OrderedJson& arguments);

}  // namespace layerpress
