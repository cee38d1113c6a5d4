#pragma once

#include "layerpress/compression/assignments.h"
#include "layerpress/rewrite/rewrite.h"
#include "layerpress/setup/opening/open_model.h"

namespace layerpress::setup {

/// Lets a head read its own stored weight if config.json ties it to the embedding's and the two differ, as in a fine-tune that has
/// trained the head alone. transformers (since 5) computes so; readers that believe config.json would not, so it says so from now on.
/// Reads both weights if both are stored.
rewrite::Changes own_stored_heads(const rewrite::Model& model);

/// Gives every linear that shares the weight of a compressed embedding (the head) an equal weight of its own, named after its
/// module. From then on the model is like one that was never tied.
rewrite::Changes untied_embeddings(const rewrite::Model& model, const compression::Assignments& assignments);

/// For a model in memory with an exported graph, in which modules that share a weight read one tensor: throws RecipeError if one of
/// them is compressed, because the tensor cannot hold the compressed and the plain form.
void require_own_weights(const rewrite::Model& model, const compression::Assignments& assignments);

/// For the same models: throws RecipeError if rewrites gave a module a weight apart from one that it shared `before`.
void require_no_new_weights(const checkpoint::Checkpoint& before, const OpenedModel& model);

}  // namespace layerpress::setup
