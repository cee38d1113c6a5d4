#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "layerpress/gguf/container/metadata.h"

namespace layerpress::gguf {

/// Whether llama.cpp strips spaces behind special tokens of a model with this general.name.
bool strips_behind_tokens(std::string name);

/// What a GGUF says of a tokenizer.
struct TokenizerKeys {
  Metadata metadata{};
  std::string name{};                ///< general.name with which llama.cpp loads it
  std::vector<std::string> notes{};  ///< what llama.cpp does otherwise than the tokenizer; for people
};

/// The keys tokenizer.* of a model folder, from tokenizer.json (byte-level BPE, or BPE with byte fallback), or from tokenizer.model
/// if there is none, and from the other files of the tokenizer. Ids up to `vocab_size`, which config.json and the embeddings have,
/// get a token; those of no token are unused. `name`: of the model. Throws CheckpointError for damaged files and for tokenizers that
/// llama.cpp does not have, naming what it lacks.
TokenizerKeys tokenizer_keys(const std::filesystem::path& model_folder, std::int64_t vocab_size,
                             const std::string& name);

}  // namespace layerpress::gguf
