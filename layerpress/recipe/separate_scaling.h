#pragma once

#include "layerpress/recipe/recipe.h"

namespace layerpress::recipe {

/// An AWQModifier of older recipes also quantizes. As in LLM Compressor, one that has a scheme, groups or other arguments of a
/// quantizer becomes an AWQModifier with the remaining arguments, and a QuantizationModifier with these behind it. Throws RecipeError if these have no scheme.
Recipe with_separate_scaling(const Recipe& recipe);

}  // namespace layerpress::recipe
