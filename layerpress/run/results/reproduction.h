#pragma once

#include <string>

#include "layerpress/oneshot.h"
#include "layerpress/run/compression/model_name.h"

namespace layerpress::run {

/// The call that makes the same output: a command, or Python for a model in memory. It names the recipe.yaml of the output if
/// there was a recipe, and DATA for data that readers of it do not have. `ranks`: as many as the sums depend on.
std::string reproduction(const OneshotOptions& options, const ModelName& model, int ranks);

/// The dataset as others know it: "" for files and for data in memory.
std::string public_dataset(const std::string& dataset);

}  // namespace layerpress::run
