#pragma once

#include <string>

#include "layerpress/base/json.h"

namespace layerpress::gguf {

/// llama.cpp's name (tokenizer.ggml.pre) for the way in which a byte-level tokenizer.json cuts text into words before it merges.
/// Throws CheckpointError for steps that llama.cpp has no name for, naming them.
std::string pre_tokenizer_name(const Json& tokenizer);

/// Throws CheckpointError if a byte-level tokenizer.json changes text in a way that llama.cpp does not.
void check_normalizer(const Json& tokenizer);

/// The way that a name stands for.
struct CutOfWords {
  Json pre_tokenizer{};         ///< of tokenizer.json
  Json normalizer{};            ///< of tokenizer.json
  bool ignores_merges = false;  ///< words that are tokens are taken whole
};

/// The other direction. Throws CheckpointError for a name that is not known here.
CutOfWords cut_of_words(const std::string& name);

}  // namespace layerpress::gguf
