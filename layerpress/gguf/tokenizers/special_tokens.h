#pragma once

#include <filesystem>
#include <string>

#include "layerpress/base/json.h"
#include "layerpress/gguf/container/metadata.h"
#include "layerpress/gguf/tokenizers/vocabulary.h"

namespace layerpress::gguf {

/// The JSON files of a tokenizer; an object without members stands for a file that is not there.
struct TokenizerFiles {
  Json tokenizer = Json::object();         ///< tokenizer.json
  Json tokenizer_config = Json::object();  ///< tokenizer_config.json
  Json special_tokens = Json::object();    ///< special_tokens_map.json
  Json model_config = Json::object();      ///< config.json
};

TokenizerFiles read_tokenizer_files(const std::filesystem::path& model_folder);

/// Adds the ids of tokens with a role, and whether texts begin and end with one. `begins`: what is assumed if no file says so. Returns what
/// llama.cpp adds to texts and tokenizer.json does not, in a sentence; or "".
std::string add_special_tokens(const TokenizerFiles& files, const Vocabulary& vocabulary, bool begins,
                               Metadata& metadata);

/// Adds the chat template, if the folder has one; of several the one named "default", and the others under their names.
void add_chat_template(const TokenizerFiles& files, const std::filesystem::path& model_folder, Metadata& metadata);

}  // namespace layerpress::gguf
