#pragma once

#include "layerpress/setup/open_model.h"

namespace layerpress::setup {

/// Finds the weights that the checkpoint stores quantized: `source_format` and `quantized`. Throws CheckpointError.
void find_quantized_weights(OpenedModel& opened);

/// The weight as a tensor of `dtype` that is computed when it is loaded.
checkpoint::ComputedTensor values_of(const source::StoredWeight& weight, at::ScalarType dtype);

/// Makes `checkpoint` from `stored`: quantized weights become tensors of `dtype` that are computed when they are loaded.
void show_values(OpenedModel& opened, at::ScalarType dtype);

}  // namespace layerpress::setup
