#pragma once

#include <map>
#include <string>

#include "layerpress/gguf/container/metadata.h"

namespace layerpress::gguf {

/// Of a model folder: chat templates with names, beside chat_template.jinja.
inline constexpr const char* kTemplatesFolder = "additional_chat_templates";

/// The tokenizer of a GGUF as files of a model folder, contents by name: tokenizer.json, tokenizer_config.json, and the chat templates.
/// Byte-level BPE, and SentencePiece's BPE with byte fallback. Throws CheckpointError for damaged keys and for other tokenizers,
/// naming them.
std::map<std::string, std::string> tokenizer_files(const Metadata& metadata);

}  // namespace layerpress::gguf
