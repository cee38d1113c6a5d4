#pragma once

#include "layerpress/rewrite/rewrite.h"

namespace layerpress::setup {

/// Lets a head read its own stored weight if config.json ties it to the embedding's and the two differ, as in a fine-tune that has
/// trained the head alone. transformers (since 5) computes so; readers that believe config.json would not, so it says so from now on.
/// Reads both weights if both are stored.
rewrite::Changes own_stored_heads(const rewrite::Model& model);

}  // namespace layerpress::setup
