#pragma once

#include <filesystem>

#include "layerpress/setup/opening/open_model.h"

namespace layerpress::setup {

/// Finds the weights that the checkpoint stores quantized: `source_format` and `quantized`. Throws CheckpointError.
void find_quantized_weights(OpenedModel& opened);

/// Opens a GGUF: `stored`, `source_format`, `quantized` and `file_metadata`. Returns the dtype of its values. Warns if its tokenizer
/// is not known, without which the model can still be run on tokens.
at::ScalarType open_file(const std::filesystem::path& path, OpenedModel& opened, const RunControl& control);

/// The weight as a tensor of `dtype` that is computed when it is loaded.
checkpoint::ComputedTensor values_of(const source::StoredWeight& weight, at::ScalarType dtype);

/// Makes `checkpoint` from `stored`: quantized weights become tensors of `dtype` that are computed when they are loaded.
void show_values(OpenedModel& opened, at::ScalarType dtype);

}  // namespace layerpress::setup
