#pragma once

#include "layerpress/modifier/arguments/argument.h"

namespace layerpress::modifier {

/// SpinQuant's rotations that parameters absorb (Liu et al. 2024, arXiv 2405.16406; the matrices are Hadamard's, as in QuaRot, Ashkboos
/// et al. 2024, arXiv 2404.00456): R1 of the residual stream, R2 of the values' heads. It is a rewrite::Rewrite. Throws RecipeError.
Kind spinquant_modifier();

}  // namespace layerpress::modifier
