#pragma once

#include <cstdint>
#include <filesystem>

#include "layerpress/data/sample_selection.h"

namespace layerpress::data {

/// Tokenizes `options.dataset` with the tokenizer of `model_directory` by running the Python helper as a child process.
/// Throws DataError with the helper's own message if it fails.
Selection prepare_with_helper(const DatasetOptions& options, const std::filesystem::path& model_directory,
                              const RunControl& control);

/// The same for only the rows at `positions` of the selected order, like read_rows. An empty result is not an error.
RowPart prepare_rows_with_helper(const DatasetOptions& options, const std::filesystem::path& model_directory,
                                 const Positions& positions, const RunControl& control);

}  // namespace layerpress::data
