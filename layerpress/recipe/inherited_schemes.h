#pragma once

#include "layerpress/recipe/recipe.h"

namespace layerpress::recipe {

/// A GPTQModifier without schemes, targets and ignored modules takes over those of the QuantizationModifiers before it,
/// as in LLM Compressor: each becomes a GPTQModifier with its own schemes and targets and the arguments of the later
/// one, except `actorder`, for which the schemes' own value applies. Without a QuantizationModifier before it, the
/// modifier stays unchanged. Throws RecipeError if the groups of one QuantizationModifier differ in actorder.
Recipe with_inherited_schemes(const Recipe& recipe);

}  // namespace layerpress::recipe
