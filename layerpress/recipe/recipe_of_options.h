#pragma once

#include "layerpress/oneshot.h"
#include "layerpress/recipe/recipe.h"

namespace layerpress::recipe {

/// The recipe for the options: the named file, or one modifier made from algorithm, scheme, group size, observer,
/// targets and ignore. The quality fills in what neither specifies. Throws UsageError for contradictions and for
/// unknown algorithms and qualities. `caches_heads`: as in standard_arguments, of the model.
Recipe recipe_of(const OneshotOptions& options, bool caches_heads = true);

/// The options with the arguments of a recipe's MixedPrecisionModifier (target_bits or target_size, schemes, targets, ignore, group_size,
/// algorithm) in place of that recipe; the options themselves if their recipe has none. Throws RecipeError and UsageError.
OneshotOptions with_mixed_precision(OneshotOptions options);

/// Throws UsageError if --group-size is given and not positive.
void check_group_size(const OneshotOptions& options);

}  // namespace layerpress::recipe
