#pragma once

#include "layerpress/compression/assignments.h"
#include "layerpress/rewrite/rewrite.h"

namespace layerpress::setup {

/// Gives every linear that shares the weight of a compressed embedding (the head) an equal weight of its own, named after its
/// module. From then on the model is like one that was never tied.
rewrite::Changes untied_embeddings(const rewrite::Model& model, const compression::Assignments& assignments);

/// For a model in memory: throws RecipeError if a module is compressed that shares its weight with another one, because the model
/// keeps one tensor for both, which cannot hold the compressed and the plain form.
void require_own_weights(const rewrite::Model& model, const compression::Assignments& assignments);

}  // namespace layerpress::setup
