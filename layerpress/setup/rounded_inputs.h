#pragma once

#include "layerpress/setup/open_model.h"

namespace layerpress::setup {

/// Rounds the inputs of linears to the activations that their schemes ask for, as an engine does when it serves the
/// model: a node before the linears that read one value, once for those that round it alike, and before attentions whose
/// keys and values are quantized. What has no such scheme stays as it is. Throws CheckpointError if a static scale is missing or not positive, or if the checkpoint
/// asks for the rounding of something else than inputs. Returns the number of linears and attentions whose inputs are rounded.
std::size_t round_inputs(OpenedModel& opened);

}  // namespace layerpress::setup
