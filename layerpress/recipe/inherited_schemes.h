#pragma once

#include "layerpress/recipe/recipe.h"

namespace layerpress::recipe {

/// A GPTQModifier that names no scheme, target or module to ignore takes over what the QuantizationModifiers before it describe,
/// as in LLM Compressor: each becomes a GPTQModifier with its own schemes and targets and the arguments of the later one. Of
/// those `actorder` is not taken over, because there the schemes' own holds. Without a QuantizationModifier before it, it stays
/// as it is. Throws RecipeError where the groups of one QuantizationModifier differ in actorder.
Recipe with_inherited_schemes(const Recipe& recipe);

}  // namespace layerpress::recipe
