#pragma once

#include "layerpress/checkpoint/checkpoint.h"
#include "layerpress/setup/opening/open_model.h"

namespace layerpress::setup {

/// The model's graph with the checkpoint's names, from the architecture that Layerpress knows or from the graph that the
/// Python helper exports, as `choice` says. Throws CheckpointError, with the helper's message if it fails.
model::TracedModel traced_model(const checkpoint::Checkpoint& checkpoint, const ModelChoice& choice,
                                const RunControl& control);

/// The float dtype of most of the checkpoint's bytes.
at::ScalarType usual_dtype(const checkpoint::Checkpoint& checkpoint);

}  // namespace layerpress::setup
