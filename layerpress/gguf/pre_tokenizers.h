#pragma once

#include <string>

#include "layerpress/base/json.h"

namespace layerpress::gguf {

/// llama.cpp's name (tokenizer.ggml.pre) for the way in which a byte-level tokenizer.json cuts text into words before it merges.
/// Throws CheckpointError for steps that llama.cpp has no name for, naming them.
std::string pre_tokenizer_name(const Json& tokenizer);

/// Throws CheckpointError if a byte-level tokenizer.json changes text in a way that llama.cpp does not.
void check_normalizer(const Json& tokenizer);

}  // namespace layerpress::gguf
