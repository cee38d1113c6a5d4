#pragma once

#include <memory>

#include "layerpress/gguf/importance.h"
#include "layerpress/oneshot.h"
#include "layerpress/recipe/recipe.h"
#include "layerpress/setup/opening/open_model.h"
#include "layerpress/target/target.h"

namespace layerpress::setup {

/// What the result is: a GGUF if the output's name ends in .gguf, in parts if a size for them is given, otherwise a folder in the format
/// of compressed-tensors. Throws UsageError, and CheckpointError for a model that a GGUF cannot hold. `importance`: that of --from-imatrix, or null.
std::shared_ptr<const target::Target> make_target(const OneshotOptions& options, const recipe::Recipe& recipe,
                                                  const OpenedModel& model, const gguf::ImportanceFile* importance);

/// The recipe with a type for each linear and embedding in place of schemes that name a mixture of types, such as Q4_K_M: llama.cpp's
/// rule for the tensor, or another type where the tensor's width does not allow it.
recipe::Recipe with_block_types(const recipe::Recipe& recipe, const OpenedModel& model, bool for_gguf,
                                bool has_importance_file);

}  // namespace layerpress::setup
