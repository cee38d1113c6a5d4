#pragma once

#include "layerpress/oneshot.h"
#include "layerpress/recipe/recipe.h"

namespace layerpress::recipe {

/// The recipe that the options ask for: the file they name, or one modifier made from algorithm, scheme, group size,
/// observer, targets and ignore; filled in by the quality where neither says otherwise. Throws UsageError for
/// contradictions and unknown algorithms and qualities.
Recipe recipe_of(const OneshotOptions& options);

}  // namespace layerpress::recipe
