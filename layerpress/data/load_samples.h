#pragma once

#include <filesystem>
#include <string>

#include "layerpress/base/progress.h"
#include "layerpress/data/calibration_set.h"

namespace layerpress::data {

/// Makes the calibration set that `options` describes.
/// - A .safetensors token file is used unchanged (num_samples, max_seq_length, shuffle and slices still apply).
/// - .jsonl/.json files whose rows contain `input_ids` are read here, line by line, without Python.
/// - Everything else is tokenized by the Python helper (prepare.py), run as a subprocess with the tokenizer of
///   `model_directory`; its one-line error message becomes the text of the DataError.
/// If there are fewer samples than requested, all are used and a warning is sent; if there are none, DataError is
/// thrown. Every token id is checked against `vocabulary_size`; the error names the sample and the id.
CalibrationSet load_samples(const DatasetOptions& options, const std::filesystem::path& model_directory,
                            std::int64_t vocabulary_size, const RunControl& control);

/// The interpreter of the helper: environment LAYERPRESS_PYTHON, else the one recorded at build time, else python3.
std::string helper_interpreter();

/// The helper script: environment LAYERPRESS_HELPER, else <executable>/../share/layerpress/python/prepare.py of an
/// installation, else the source tree recorded at build time. Throws DataError if none exists.
std::filesystem::path helper_script();

}  // namespace layerpress::data
