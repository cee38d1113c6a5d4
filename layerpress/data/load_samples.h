#pragma once

#include <filesystem>
#include <string>

#include "layerpress/base/progress.h"
#include "layerpress/data/calibration_set.h"

namespace layerpress::data {

/// Makes the calibration set that `options` asks for.
/// - a .safetensors token file is read as it is (num_samples, max_seq_length, shuffle and slices still apply);
/// - .jsonl/.json whose rows hold `input_ids` are read here, line by line, without Python;
/// - everything else is tokenized by the Python helper (prepare.py) run as a subprocess with the tokenizer of
///   `model_directory`; its one-line error message becomes the DataError's text.
/// Fewer samples than asked for: a warning event, and all are used. None: DataError. Every token id is checked against
/// `vocabulary_size` (the sample and the id are named).
CalibrationSet load_samples(const DatasetOptions& options, const std::filesystem::path& model_directory,
                            std::int64_t vocabulary_size, const RunControl& control);

/// The interpreter for the helper: environment LAYERPRESS_PYTHON, else the one recorded at build time, else python3.
std::string helper_interpreter();

/// The helper script: environment LAYERPRESS_HELPER, else <executable>/../share/layerpress/python/prepare.py of an
/// installation, else the source tree recorded at build time. Throws DataError when none exists.
std::filesystem::path helper_script();

}  // namespace layerpress::data
