#pragma once

#include <cstdint>
#include <filesystem>

#include "layerpress/gguf/container/metadata.h"

namespace layerpress::gguf {

/// The keys tokenizer.* of a model folder, from tokenizer.json (byte-level BPE, or BPE with byte fallback), or from tokenizer.model
/// if there is none, and from the other files of the tokenizer. Ids up to `vocab_size`, which config.json and the embeddings have,
/// get a token; those of no token are unused. Throws CheckpointError for damaged files and for tokenizers that llama.cpp does not
/// have, naming what it lacks.
Metadata tokenizer_metadata(const std::filesystem::path& model_folder, std::int64_t vocab_size);

}  // namespace layerpress::gguf
