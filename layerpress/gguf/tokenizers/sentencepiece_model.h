#pragma once

#include <filesystem>

#include "layerpress/gguf/tokenizers/vocabulary.h"

namespace layerpress::gguf {

/// A file tokenizer.model of SentencePiece.
struct SentencePieceModel {
  Vocabulary vocabulary;
  bool adds_space_prefix = true;
};

/// Reads the file, which need not be well-formed. Throws CheckpointError for one that is damaged, that has more tokens than
/// `vocab_size`, or whose model or normalization llama.cpp does not compute.
SentencePieceModel read_sentencepiece(const std::filesystem::path& file, std::int64_t vocab_size);

}  // namespace layerpress::gguf
