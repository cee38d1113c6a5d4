#pragma once

#include "layerpress/compression/assignments.h"
#include "layerpress/setup/opening/open_model.h"

namespace layerpress::setup {

/// Puts the linears of single experts in `quantized` in place of the stacked ones that the graph's stacked tensors are. Throws
/// CheckpointError if such a tensor has another shape.
void divide_quantized_experts(OpenedModel& opened);

/// Puts the linears of single experts in `checkpoint` in place of the graph's stacked tensors that are not quantized. Each is
/// copied out of its tensor whenever it is loaded. Throws CheckpointError if such a tensor has another shape.
void divide_stacked_experts(OpenedModel& opened);

/// Of layers whose experts the run leaves as they are, `written_stacked` and the stacked tensors, back in `checkpoint`: readers
/// that know the model plain know no others. Linears that a rewrite has changed are stacked again.
void keep_stacked_experts(OpenedModel& model, const compression::Assignments& assignments);

}  // namespace layerpress::setup
