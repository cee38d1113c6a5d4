#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "layerpress/base/json.h"
#include "layerpress/checkpoint/checkpoint.h"

namespace layerpress::checkpoint {

/// Whether texts or images become something else if this companion file is another one: tokenizer, processor, chat template, code.
bool is_preprocessing_file(const std::filesystem::path& companion);

/// Those of the files that readers of a model parse as JSON, but are none: is_preprocessing_file() and generation_config.json. Sorted.
/// Throws IoError if one of the files, whichever it is, cannot be read.
std::vector<std::filesystem::path> damaged_companions(const Checkpoint& checkpoint);

/// Refuses before the work what write_companions() could not copy, and what no reader could parse in the copy. Throws CheckpointError,
/// or IoError if a file cannot be read.
void require_companions(const Checkpoint& source);

/// Writes `config` as config.json (indent 2, sorted keys, newline) into `directory` and copies the companion files of
/// `source` (following links) except those named in `without`.
void write_companions(const Checkpoint& source, const Json& config, const std::filesystem::path& directory,
                      const std::vector<std::string>& without = {});

}  // namespace layerpress::checkpoint
