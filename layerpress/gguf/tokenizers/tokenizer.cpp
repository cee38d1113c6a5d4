#include "layerpress/gguf/tokenizers/tokenizer.h"

#include <algorithm>
#include <cctype>
#include <set>
#include <unordered_set>
#include <utility>

#include "layerpress/gguf/tokenizers/pre_tokenizers.h"
#include "layerpress/gguf/tokenizers/sentencepiece_model.h"
#include "layerpress/gguf/tokenizers/special_tokens.h"
#include "layerpress/gguf/tokenizers/vocabulary.h"

namespace layerpress::gguf {
namespace {

void add_vocabulary(const Vocabulary& vocabulary, bool with_scores, Metadata& metadata) {
  metadata.emplace_back("tokenizer.ggml.tokens", vocabulary.tokens());
  if (with_scores) metadata.emplace_back("tokenizer.ggml.scores", vocabulary.scores());
  metadata.emplace_back("tokenizer.ggml.token_type", vocabulary.types());
}

/// Throws unless the model is BPE without parts that llama.cpp lacks.
void check_model(const Json& tokenizer) {
  const Json model = json_get<Json>(tokenizer, "model", kTokenizerFile);
  if (!model.is_object()) throw CheckpointError("[gguf.tokenizer] tokenizer.json: 'model' is not an object");
  const auto type = json_get_or<std::string>(model, "type", kTokenizerFile, "BPE");
  if (type != "BPE")
    throw CheckpointError(
        "[gguf.tokenizer] tokenizer.json: a model of type {}; only BPE has a GGUF form here; write compressed-tensors "
        "instead",
        type);
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!json_get_or<std::string>(model, key, kTokenizerFile, "").empty())
      throw CheckpointError("[gguf.tokenizer] tokenizer.json: llama.cpp has no '{}'; write compressed-tensors instead",
                            key);
  }
}

/// The steps of a part of tokenizer.json that may be one step or a Sequence of them.
std::vector<Json> steps_of(const Json& tokenizer, const char* part, const char* list) {
  if (!json_has(tokenizer, part)) return {};
  const Json& step = tokenizer[part];
  if (json_get<std::string>(step, "type", kTokenizerFile) != "Sequence") return {step};
  return json_get<std::vector<Json>>(step, list, kTokenizerFile);
}

[[noreturn]] void refuse_step(const std::string& part, const Json& step) {
  throw CheckpointError("[gguf.tokenizer] tokenizer.json: llama.cpp has no {} {} for BPE with byte fallback; write {}",
                        part, step.dump().substr(0, 120), "compressed-tensors instead");
}

/// Whether a step writes spaces as U+2581.
bool writes_spaces(const Json& step) {
  return json_get<std::string>(step, "type", kTokenizerFile) == "Replace" && step.value("content", Json()) == "▁" &&
         step.value("pattern", Json()) == Json{{"String", " "}};
}

/// Whether a tokenizer with byte fallback puts a space before text, besides writing spaces as U+2581.
bool adds_space_prefix(const Json& tokenizer) {
  bool adds = false;
  for (const Json& step : steps_of(tokenizer, "normalizer", "normalizers")) {
    const auto type = json_get<std::string>(step, "type", kTokenizerFile);
    if (type == "Prepend" && step.value("prepend", Json()) == "▁") {
      adds = true;
    } else if (!writes_spaces(step)) {
      refuse_step("normalizer", step);
    }
  }
  for (const Json& step : steps_of(tokenizer, "pre_tokenizer", "pretokenizers")) {
    const auto type = json_get<std::string>(step, "type", kTokenizerFile);
    if (type == "Metaspace" && step.value("replacement", Json("▁")) == "▁") {
      adds = json_get_or<std::string>(step, "prepend_scheme", kTokenizerFile, "always") != "never";
    } else if (type != "Split" || step.value("pattern", Json()) != Json{{"String", " "}}) {
      refuse_step("pre-tokenizer", step);
    }
  }
  return adds;
}

/// Throws CheckpointError if words are cut apart that tokens span: llama.cpp does not cut, and would make such tokens.
void check_words(const Json& tokenizer, const Vocabulary& vocabulary) {
  for (const Json& step : steps_of(tokenizer, "pre_tokenizer", "pretokenizers")) {
    if (json_get<std::string>(step, "type", kTokenizerFile) != "Metaspace") continue;
    if (!json_get_or<bool>(step, "split", kTokenizerFile, true)) continue;
    for (std::size_t id = 0; id < vocabulary.tokens().size(); ++id)
      if (const std::string& token = vocabulary.tokens()[id];
          vocabulary.type(id) == TokenType::kNormal && token.find("▁", 1) != std::string::npos)
        throw CheckpointError(
            "[gguf.tokenizer] tokenizer.json: Metaspace cuts text before every space (split), which llama.cpp does not "
            "do, and the vocabulary has tokens across such cuts, as {}; write compressed-tensors instead",
            shortened(token));
  }
}

/// Whether tokens are written in the alphabet of bytes.
bool is_byte_level(const Json& tokenizer) {
  for (const Json& step : steps_of(tokenizer, "pre_tokenizer", "pretokenizers"))
    if (json_get<std::string>(step, "type", kTokenizerFile) == "ByteLevel") return true;
  return false;
}

void add_byte_level(const Json& tokenizer, const Vocabulary& vocabulary, Metadata& metadata) {
  check_normalizer(tokenizer);
  metadata.emplace_back("tokenizer.ggml.model", std::string("gpt2"));
  metadata.emplace_back("tokenizer.ggml.pre", pre_tokenizer_name(tokenizer));
  add_vocabulary(vocabulary, false, metadata);
  metadata.emplace_back("tokenizer.ggml.merges", read_merges(tokenizer));
}

/// The bytes for which llama.cpp finds no token, as "<0x0A>".
std::vector<std::string> missing_bytes(const Vocabulary& vocabulary) {
  const std::unordered_set<std::string> tokens(vocabulary.tokens().begin(), vocabulary.tokens().end());
  std::vector<std::string> missing;
  for (int byte = 0; byte < 256; ++byte) {
    const std::string name = fmt::format("<0x{:02X}>", byte);
    if (!tokens.contains(name) && !tokens.contains(std::string(1, static_cast<char>(byte)))) missing.push_back(name);
  }
  return missing;
}

/// Throws CheckpointError if the vocabulary lacks `bytes`, or some of them, for characters that are no tokens.
void add_byte_fallback(const Vocabulary& vocabulary, bool space_prefix, bool bytes, Metadata& metadata) {
  const std::vector<std::int32_t> types = vocabulary.types();
  if (!bytes || std::find(types.begin(), types.end(), static_cast<std::int32_t>(TokenType::kByte)) == types.end())
    throw CheckpointError(
        "[gguf.tokenizer] the tokenizer has no byte fallback: llama.cpp ends at the first character that is no token; "
        "write compressed-tensors instead");
  if (const std::vector<std::string> missing = missing_bytes(vocabulary); !missing.empty())
    throw CheckpointError(
        "[gguf.tokenizer] the tokenizer has no byte fallback for {} of 256 bytes, such as {}: llama.cpp ends at the "
        "first character with one that is no token; write compressed-tensors instead",
        missing.size(), missing.front());
  metadata.emplace_back("tokenizer.ggml.model", std::string("llama"));
  metadata.emplace_back("tokenizer.ggml.pre", std::string("default"));
  add_vocabulary(vocabulary, true, metadata);
  metadata.emplace_back("tokenizer.ggml.add_space_prefix", space_prefix);
}

/// Tokens that files beside tokenizer.model add to it.
void add_tokens_beside(const TokenizerFiles& files, const std::filesystem::path& folder, Vocabulary& vocabulary) {
  if (const auto file = folder / "added_tokens.json"; std::filesystem::exists(file)) {
    const Json added = read_json_file(file);
    if (!added.is_object()) throw CheckpointError("[gguf.tokenizer] added_tokens.json: not a JSON object");
    for (const auto& [token, id] : added.items())
      vocabulary.set_added(json_get<std::int64_t>(added, token, "added_tokens.json"), token, /*special=*/false,
                           /*spaces=*/true);
  }
  const Json decoder =
      json_get_or<Json>(files.tokenizer_config, "added_tokens_decoder", "tokenizer_config.json", Json::object());
  for (const auto& [id, token] : decoder.items()) {
    if (id.empty() || id.size() > 9 || id.find_first_not_of("0123456789") != std::string::npos)
      throw CheckpointError("[gguf.tokenizer] tokenizer_config.json: added_tokens_decoder has '{}' in place of an id",
                            id.substr(0, 40));
    vocabulary.set_added(std::stoll(id), json_get<std::string>(token, "content", "tokenizer_config.json"),
                         json_get_or<bool>(token, "special", "tokenizer_config.json", false), /*spaces=*/true);
  }
  vocabulary.check_distinct();
}

/// What llama.cpp does otherwise about the space before a text; "": nothing.
std::string space_note(const Json& tokenizer) {
  for (const Json& step : steps_of(tokenizer, "pre_tokenizer", "pretokenizers")) {
    if (json_get<std::string>(step, "type", kTokenizerFile) != "Metaspace") continue;
    const auto scheme = json_get_or<std::string>(step, "prepend_scheme", kTokenizerFile, "always");
    if (scheme == "never") continue;
    return fmt::format(
        "llama.cpp puts a space before texts that begin with one, too{}, which tokenizer.json does not, so that such "
        "texts get other token ids",
        scheme == "first" ? ", and before text behind special tokens" : ", also behind special tokens");
  }
  return "";
}

/// Added tokens with U+2581 that tokenizer.json does not make of spaces, but llama.cpp by merges; "": none.
std::string merging_note(const Vocabulary& vocabulary) {
  for (std::size_t id = 0; id < vocabulary.tokens().size(); ++id)
    if (const std::string& token = vocabulary.tokens()[id];
        vocabulary.type(id) == TokenType::kUserDefined && token.find("▁") != std::string::npos)
      return fmt::format(
          "llama.cpp may make added tokens with U+2581 (such as {}) of spaces, which tokenizer.json does not, so that "
          "texts with spaces may get other token ids",
          shortened(token));
  return "";
}

/// What merges do in tokenizer.json and not in llama.cpp; "": nothing.
std::string dropout_note(const Json& tokenizer) {
  const auto dropout = json_get_or<double>(tokenizer.at("model"), "dropout", kTokenizerFile, 0);
  if (dropout <= 0) return "";
  return fmt::format(
      "tokenizer.json leaves out merges by chance (dropout {}), which llama.cpp does not, so that texts get other "
      "token ids; set it to null there to calibrate on those of llama.cpp",
      dropout);
}

TokenizerKeys from_tokenizer_json(const TokenizerFiles& files, std::int64_t vocab_size) {
  check_model(files.tokenizer);
  const bool byte_level = is_byte_level(files.tokenizer);
  const std::vector<Json> normalizers = steps_of(files.tokenizer, "normalizer", "normalizers");
  const bool spaces = !byte_level && std::any_of(normalizers.begin(), normalizers.end(), writes_spaces);
  Vocabulary vocabulary = read_vocabulary(files.tokenizer, byte_level, spaces, vocab_size);
  TokenizerKeys keys;
  Metadata& metadata = keys.metadata;
  if (!byte_level) {
    score_by_merges(files.tokenizer, vocabulary);
    add_byte_fallback(vocabulary, adds_space_prefix(files.tokenizer),
                      json_get_or<bool>(files.tokenizer.at("model"), "byte_fallback", kTokenizerFile, false), metadata);
    check_words(files.tokenizer, vocabulary);
    keys.notes.push_back(space_note(files.tokenizer));
    keys.notes.push_back(merging_note(vocabulary));
  } else {
    add_byte_level(files.tokenizer, vocabulary, metadata);
  }
  keys.notes.push_back(dropout_note(files.tokenizer));
  keys.notes.push_back(add_special_tokens(files, vocabulary, /*begins=*/false, metadata));
  return keys;
}

Metadata from_sentencepiece(const TokenizerFiles& files, const std::filesystem::path& folder, std::int64_t vocab_size) {
  SentencePieceModel model = read_sentencepiece(folder / "tokenizer.model", vocab_size);
  add_tokens_beside(files, folder, model.vocabulary);
  Metadata metadata;
  add_byte_fallback(model.vocabulary, model.adds_space_prefix, /*bytes=*/true, metadata);
  add_special_tokens(files, model.vocabulary, /*begins=*/true, metadata);
  return metadata;
}

/// Whether a normalizer, or one of a sequence, makes other characters of spaces or letters that added tokens may have.
bool changes_tokens(const Json& normalizer) {
  static const std::set<std::string> kKinds = {"Lowercase", "Prepend", "Replace", "Strip", "BertNormalizer"};
  if (!normalizer.is_object()) return false;
  if (kKinds.contains(normalizer.value("type", ""))) return true;
  const Json steps = normalizer.value("normalizers", Json::array());
  return std::any_of(steps.begin(), steps.end(), changes_tokens);
}

/// Added tokens that are looked for in the normalized text, as those that users add are; llama.cpp looks for all in the text as it is.
std::string normalized_note(const Json& tokenizer) {
  if (!changes_tokens(tokenizer.value("normalizer", Json()))) return "";
  for (const Json& token : json_get_or<std::vector<Json>>(tokenizer, "added_tokens", kTokenizerFile, {}))
    if (json_get_or<bool>(token, "normalized", kTokenizerFile, false))
      return fmt::format(
          "llama.cpp looks for added tokens (such as {}) before it normalizes a text, tokenizer.json behind that "
          "(normalized), so that texts with them may get other token ids",
          shortened(token.value("content", Json())));
  return "";
}

/// What llama.cpp does not do around added tokens; "": nothing. It strips spaces behind them in models whose name says Phi 3.
std::string stripping_note(const Json& tokenizer, const std::string& name) {
  bool behind = false, others = false;
  std::string first;
  for (const Json& token : json_get_or<std::vector<Json>>(tokenizer, "added_tokens", kTokenizerFile, {})) {
    const bool own = json_get_or<bool>(token, "rstrip", kTokenizerFile, false);
    const bool other = json_get_or<bool>(token, "lstrip", kTokenizerFile, false) ||
                       json_get_or<bool>(token, "single_word", kTokenizerFile, false);
    if ((own || other) && first.empty()) first = shortened(token.value("content", Json()));
    behind = behind || own, others = others || other;
  }
  if (!others && (!behind || strips_behind_tokens(name))) return "";
  return fmt::format(
      "llama.cpp does not look at lstrip, rstrip and single_word of added tokens (such as {}), so that texts with "
      "them may get other token ids{}",
      first, others ? "" : "; it strips spaces behind them if the model's folder has phi-3 in its name: rename it");
}

}  // namespace

bool strips_behind_tokens(std::string name) {
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  return name.find("phi-3") != std::string::npos || name.find("phi3") != std::string::npos;
}

namespace {

/// A name of the model with which llama.cpp loads the tokenizer: where it says Phi 3, llama.cpp ends if one of its tokens is missing.
std::string name_to_load(const std::string& name, const Metadata& tokenizer) {
  if (!strips_behind_tokens(name)) return name;
  const auto* tokens = find_value<std::vector<std::string>>(tokenizer, "tokenizer.ggml.tokens");
  const auto has = [&](const char* token) {
    return tokens != nullptr && std::find(tokens->begin(), tokens->end(), token) != tokens->end();
  };
  if (has("<unk>") && has("<s>") && has("</s>") && has("<|endoftext|>")) return name;
  std::string other = name;
  for (std::size_t at = 3; at < other.size(); ++at)
    if (strips_behind_tokens(other.substr(at - 3, 4)))
      other.insert(at, " ");
    else if (other[at] == '-' && strips_behind_tokens(other.substr(at - 3, 5)))
      other[at] = ' ';
  return other;
}

}  // namespace

TokenizerKeys tokenizer_keys(const std::filesystem::path& model_folder, std::int64_t vocab_size,
                             const std::string& name) {
  const TokenizerFiles files = read_tokenizer_files(model_folder);
  TokenizerKeys keys;
  Metadata& metadata = keys.metadata;
  if (!files.tokenizer.empty()) {
    keys = from_tokenizer_json(files, vocab_size);
  } else if (std::filesystem::exists(model_folder / "tokenizer.model")) {
    metadata = from_sentencepiece(files, model_folder, vocab_size);
  } else {
    throw CheckpointError(
        "[gguf.tokenizer] {}: neither tokenizer.json nor tokenizer.model; a GGUF contains the tokenizer, so put it "
        "into the folder",
        model_folder.string());
  }
  add_chat_template(files, model_folder, metadata);
  keys.name = name_to_load(name, metadata);
  if (keys.name != name)
    keys.notes.push_back(
        fmt::format("the file's name for the model (general.name) is '{}', because llama.cpp expects tokens of Phi 3 "
                    "in a model whose name says so",
                    keys.name));
  keys.notes.push_back(stripping_note(files.tokenizer, keys.name));
  keys.notes.push_back(normalized_note(files.tokenizer));
  std::erase(keys.notes, "");
  return keys;
}

}  // namespace layerpress::gguf
