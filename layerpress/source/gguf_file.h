#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "layerpress/checkpoint/checkpoint.h"
#include "layerpress/gguf/container/metadata.h"
#include "layerpress/source/stored_weight.h"

namespace layerpress::source {

/// A GGUF file, of a divided one the first part, opened as a model. Nothing of its weights is decoded before a tensor is loaded.
struct GgufFile {
  /// Config and tokenizer are in a temporary folder. Tensors of floats have their names and forms in a checkpoint; those in blocks
  /// have the names of the file, and are the parts of `weights`.
  std::shared_ptr<const checkpoint::Checkpoint> checkpoint;
  std::vector<StoredWeight> weights;
  gguf::Metadata metadata;
  std::string description;               ///< "GGUF, mostly Q4_K"
  at::ScalarType dtype = at::kBFloat16;  ///< of weights that are in blocks, where nothing else is wanted
  std::string missing_tokenizer{};       ///< why there are no tokenizer files; "": there are
};

/// Whether a path is a GGUF file, by its name.
bool is_gguf_file(const std::filesystem::path& path);

/// A message about the model of such a file: names the metadata in place of the config.json that is made of it, and the file.
std::string about_gguf(std::string message, const std::filesystem::path& path);

/// Opens the other parts beside a first one, too. Throws CheckpointError for damaged files, and for models that Layerpress cannot read
/// from a GGUF, naming what it lacks.
GgufFile open_gguf(const std::filesystem::path& path);

}  // namespace layerpress::source
