#pragma once

#include <string>
#include <vector>

#include "layerpress/base/json.h"

namespace layerpress::recipe {

/// Whether --scheme names the recipe of most published checkpoints, "nvfp4-fp8" (case does not matter): 4-bit weights and
/// activations (NVFP4) in MLPs and experts, fp8 in attention, an fp8 cache of keys and values. Routers, heads, embeddings, vision
/// and other encoders, and what is only used to predict several tokens stay as they are.
bool is_standard_recipe(const std::string& scheme);

/// Its arguments for a quantizing modifier. `ignore`: what else stays as it is. `caches_heads`: engines cache the keys and
/// values of heads, and not what they are computed from (MLA), which has no scales.
OrderedJson standard_arguments(const std::vector<std::string>& ignore, bool caches_heads);

/// Whether it is one of the patterns that stand in its ignore list for any model, and may match nothing.
bool is_standard_pattern(const std::string& entry);

}  // namespace layerpress::recipe
