#pragma once

#include <memory>
#include <string>
#include <vector>

#include "layerpress/base/json.h"
#include "layerpress/compression/modifier.h"
#include "layerpress/modifier/arguments/argument.h"

namespace layerpress::modifier {

const std::vector<Argument>& spinquant_arguments();

/// SpinQuant's rotations that parameters absorb (Liu et al. 2024, arXiv 2405.16406; the matrices are Hadamard's, as in QuaRot, Ashkboos
/// et al. 2024, arXiv 2404.00456): R1 of the residual stream, R2 of the values' heads. It is a rewrite::Rewrite. Throws RecipeError.
std::unique_ptr<compression::Modifier> make_spinquant_modifier(const OrderedJson& arguments, const std::string& where);

}  // namespace layerpress::modifier
