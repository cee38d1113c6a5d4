// {"tokenizer": tokenizer.json, "config": tokenizer_config.json}, or the bytes of tokenizer.model.
#include "layerpress/gguf/tokenizers/tokenizer.h"
#include "layerpress/gguf/tokenizers/tokenizer_files.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/targets.h"

namespace layerpress::fuzz {

void tokenizer_folder(std::string_view input) {
  const std::filesystem::path json = input_folder() / "tokenizer.json";
  const Json files = input.starts_with('{') ? described(input) : Json();
  if (files.is_object()) {
    write_input("tokenizer.json", files.value("tokenizer", Json()).dump(-1, ' ', true, Json::error_handler_t::replace));
    write_input("tokenizer_config.json",
                files.value("config", Json()).dump(-1, ' ', true, Json::error_handler_t::replace));
  } else {
    std::filesystem::remove(json);
    write_input("tokenizer.model", input);
  }
  constexpr std::int64_t kVocabulary = 300;
  const gguf::Metadata metadata = gguf::tokenizer_keys(input_folder(), kVocabulary, "").metadata;
  (void)gguf::tokenizer_files(metadata);
}

}  // namespace layerpress::fuzz
