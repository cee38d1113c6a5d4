#pragma once

#include <cstddef>
#include <optional>

#include "layerpress/compression/assignments.h"
#include "layerpress/setup/opening/open_model.h"

namespace layerpress::setup {

/// Rounds the inputs of linears to the activations that their schemes ask for, as an engine does when it serves the
/// model: a node before the linears that read one value, once for those that round it alike, and before attentions whose
/// keys and values are quantized. What has no such scheme stays as it is. Throws CheckpointError if a static scale is missing or not positive, or if the checkpoint
/// asks for the rounding of something else than inputs. Returns the number of linears whose inputs are rounded;
/// nothing: neither these nor attentions are.
std::optional<std::size_t> round_inputs(OpenedModel& opened);

/// Rounds the inputs of linears whose quantizer is calibrated on rounded inputs (Quantizer::rounds_inputs) and whose scheme rounds them
/// to less than 8 bits with dynamic scales. Scales of runs have no dtype here, because the global scale that they are divided by is not known
/// before data is. Returns the number of linears; if it is not 0, the assignments are those of another graph. Throws RecipeError if
/// a quantizer asks for it and no scheme has such inputs, and beside transforms, which look for norms directly before linears.
std::size_t round_calibrated_inputs(OpenedModel& model, const compression::Assignments& assignments);

}  // namespace layerpress::setup
