#include "layerpress/gguf/tokenizers/tokenizer_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <optional>
#include <set>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "layerpress/base/error.h"
#include "layerpress/base/json.h"
#include "layerpress/gguf/tokenizers/pre_tokenizers.h"
#include "layerpress/gguf/tokenizers/tokenizer.h"
#include "layerpress/gguf/tokenizers/vocabulary.h"

namespace layerpress::gguf {
namespace {

constexpr const char* kSpace = "▁";  // SentencePiece's

/// The value of tokenizer.KEY, or null without such a key. Throws CheckpointError for one of another type, which llama.cpp does not
/// read either.
template <typename T>
const T* find(const Metadata& metadata, const std::string& key) {
  const std::string name = "tokenizer." + key;
  const T* found = find_value<T>(metadata, name);
  if (found == nullptr && has_key(metadata, name))
    throw CheckpointError("[gguf.tokenizer] {} has another type than readers insist on; fetch the file again", name);
  return found;
}

template <typename T>
const T& required(const Metadata& metadata, const std::string& key) {
  if (const T* found = find<T>(metadata, "ggml." + key)) return *found;
  throw CheckpointError("[gguf.tokenizer] tokenizer.ggml.{} is missing", key);
}

template <typename T>
T value_or(const Metadata& metadata, const std::string& key, T otherwise) {
  const T* found = find<T>(metadata, "ggml." + key);
  return found == nullptr ? otherwise : *found;
}

/// Tokens with their types and scores, which the file has for all or for none.
struct Tokens {
  explicit Tokens(const Metadata& metadata)
      : texts(required<std::vector<std::string>>(metadata, "tokens")),
        types(required<std::vector<std::int32_t>>(metadata, "token_type")),
        scores(value_or<std::vector<float>>(metadata, "scores", {})) {
    if (types.size() != texts.size() || (!scores.empty() && scores.size() != texts.size()))
      throw CheckpointError("[gguf.tokenizer] the file has {} tokens, {} types and {} scores", texts.size(),
                            types.size(), scores.size());
    for (std::size_t id = 0; id < types.size(); ++id)
      if (types[id] < 0 || types[id] > static_cast<std::int32_t>(TokenType::kByte))  // 0: undefined
        throw CheckpointError("[gguf.tokenizer] token {} has type {}, which is none of 0 to 6", id, types[id]);
  }
  TokenType type(std::size_t id) const { return static_cast<TokenType>(types[id]); }
  /// What writers put into the place of an id without a token.
  bool is_filler(std::size_t id) const {
    return type(id) == TokenType::kUnused && texts[id] == "[PAD" + std::to_string(id) + "]";
  }

  const std::vector<std::string>& texts;
  const std::vector<std::int32_t>& types;
  std::vector<float> scores;
};

std::string in_vocabulary(std::string text, bool byte_level) {
  for (std::size_t at = text.find(' '); !byte_level && at != std::string::npos; at = text.find(' ', at))
    text.replace(at, 1, kSpace);
  return text;
}

Json vocabulary_of(const Tokens& tokens, bool byte_level) {
  Json vocabulary = Json::object();
  for (std::size_t id = 0; id < tokens.texts.size(); ++id) {
    if (tokens.is_filler(id)) continue;
    const auto [entry, is_new] = vocabulary.emplace(in_vocabulary(tokens.texts[id], byte_level), id);
    if (!is_new)
      throw CheckpointError("[gguf.tokenizer] tokens {} and {} are both '{}'", entry.value().get<std::size_t>(), id,
                            tokens.texts[id].substr(0, 80));
  }
  return vocabulary;
}

/// As llama.cpp takes them.
Json added_tokens(const Metadata& metadata, const Tokens& tokens, bool byte_level) {
  static const std::set<std::string_view> kUnstripped = {"<unk>", "<s>", "<|endoftext|>"};
  const auto* name = find_value<std::string>(metadata, "general.name");
  const bool strips = name != nullptr && strips_behind_tokens(*name);
  Json added = Json::array();
  for (std::size_t id = 0; id < tokens.texts.size(); ++id) {
    const TokenType type = tokens.type(id);
    const bool special = type == TokenType::kControl || type == TokenType::kUnknown;
    if (!special && type != TokenType::kUserDefined) continue;
    added.push_back({{"id", id},
                     {"content", in_vocabulary(tokens.texts[id], byte_level)},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", strips && !kUnstripped.contains(tokens.texts[id])},
                     {"normalized", false},
                     {"special", special}});
  }
  return added;
}

/// Added tokens take no part in merges.
bool can_be_merged(const Tokens& tokens, std::size_t id) {
  return tokens.type(id) == TokenType::kNormal && tokens.scores[id] > kNoScore;
}

/// The merges by which BPE does what SentencePiece does with scores: the pair first whose token has the highest score.
Json merges_by_score(const Tokens& tokens) {
  std::unordered_map<std::string_view, std::size_t> ids;
  for (std::size_t id = 0; id < tokens.texts.size(); ++id) ids.emplace(tokens.texts[id], id);
  struct Merge {
    float score;
    std::size_t left, right;
  };
  std::vector<Merge> merges;
  for (std::size_t id = 0; id < tokens.texts.size(); ++id) {
    if (!can_be_merged(tokens, id)) continue;
    const std::string_view text = tokens.texts[id];
    constexpr std::size_t kLongest = 1024;
    for (std::size_t cut = 1; cut < std::min(text.size(), kLongest); ++cut) {
      if ((static_cast<unsigned char>(text[cut]) & 0xC0) == 0x80) continue;  // inside a character
      const auto left = ids.find(text.substr(0, cut)), right = ids.find(text.substr(cut));
      if (left != ids.end() && right != ids.end()) merges.push_back({tokens.scores[id], left->second, right->second});
    }
  }
  std::stable_sort(merges.begin(), merges.end(), [](const Merge& a, const Merge& b) {
    return std::tuple(-a.score, a.left, a.right) < std::tuple(-b.score, b.left, b.right);
  });
  Json list = Json::array();
  for (const Merge& merge : merges) list.push_back(Json::array({tokens.texts[merge.left], tokens.texts[merge.right]}));
  return list;
}

/// The merges of byte-level BPE; in a token, a space is written as U+0120.
Json listed_merges(const Metadata& metadata, const Json& vocabulary) {
  Json list = Json::array();
  for (const std::string& merge : required<std::vector<std::string>>(metadata, "merges")) {
    const std::size_t space = merge.find(' ', 1);
    if (space == std::string::npos || space + 1 == merge.size())
      throw CheckpointError("[gguf.tokenizer] merge '{}' is not two tokens", merge.substr(0, 80));
    const std::string left = merge.substr(0, space), right = merge.substr(space + 1);
    for (const std::string& token : {left, right, left + right})
      if (!vocabulary.contains(token))
        throw CheckpointError("[gguf.tokenizer] merge '{}' needs '{}', which is no token", merge.substr(0, 80),
                              token.substr(0, 80));
    list.push_back(Json::array({left, right}));
  }
  return list;
}

Json model_of(Json vocabulary, Json merges) {
  return {{"type", "BPE"},
          {"dropout", nullptr},
          {"unk_token", nullptr},
          {"continuing_subword_prefix", nullptr},
          {"end_of_word_suffix", nullptr},
          {"fuse_unk", false},
          {"byte_fallback", false},
          {"ignore_merges", false},
          {"vocab", std::move(vocabulary)},
          {"merges", std::move(merges)}};
}

Json byte_level(const Metadata& metadata, const Tokens& tokens) {
  CutOfWords cut = cut_of_words(required<std::string>(metadata, "pre"));
  Json vocabulary = vocabulary_of(tokens, true), merges = listed_merges(metadata, vocabulary);
  Json tokenizer = {{"normalizer", std::move(cut.normalizer)},
                    {"pre_tokenizer", std::move(cut.pre_tokenizer)},
                    {"decoder", {{"type", "ByteLevel"}}},
                    {"model", model_of(std::move(vocabulary), std::move(merges))},
                    {"added_tokens", added_tokens(metadata, tokens, true)}};
  tokenizer["decoder"].update({{"add_prefix_space", true}, {"trim_offsets", true}, {"use_regex", true}});
  tokenizer["model"]["ignore_merges"] = cut.ignores_merges;
  return tokenizer;
}

Json sequence(const char* list, Json steps) { return {{"type", "Sequence"}, {list, std::move(steps)}}; }

Json byte_fallback(const Metadata& metadata, const Tokens& tokens) {
  if (tokens.scores.empty()) required<std::vector<float>>(metadata, "scores");
  const bool prefix = value_or(metadata, "add_space_prefix", true);
  const auto replaced = [](const char* from, const char* to) {
    return Json{{"type", "Replace"}, {"pattern", {{"String", from}}}, {"content", to}};
  };
  Json normalizer = Json::array();
  if (prefix) normalizer.push_back({{"type", "Prepend"}, {"prepend", kSpace}});
  normalizer.push_back(replaced(" ", kSpace));
  Json decoder = Json::array({replaced(kSpace, " "), {{"type", "ByteFallback"}}, {{"type", "Fuse"}}});
  if (prefix) decoder.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  Json tokenizer = {{"normalizer", sequence("normalizers", std::move(normalizer))},
                    {"pre_tokenizer", nullptr},
                    {"decoder", sequence("decoders", std::move(decoder))},
                    {"model", model_of(vocabulary_of(tokens, false), merges_by_score(tokens))},
                    {"added_tokens", added_tokens(metadata, tokens, false)}};
  for (std::size_t id = 0; id < tokens.texts.size(); ++id)
    if (tokens.type(id) == TokenType::kUnknown) tokenizer["model"]["unk_token"] = tokens.texts[id];
  tokenizer["model"]["fuse_unk"] = true;
  tokenizer["model"]["byte_fallback"] = true;
  return tokenizer;
}

/// The token of a role, such as "bos"; nothing if there is none.
std::optional<std::string> token_of_role(const Metadata& metadata, const Tokens& tokens, const std::string& role) {
  const auto* id = find<std::uint32_t>(metadata, "ggml." + role + "_token_id");
  if (id == nullptr) return std::nullopt;
  if (*id >= tokens.texts.size())
    throw CheckpointError("[gguf.tokenizer] tokenizer.ggml.{}_token_id is {}, but there are {} tokens", role, *id,
                          tokens.texts.size());
  return tokens.texts[*id];
}

/// Whether texts begin with a token if the file does not say so.
bool usually_begins(const Metadata& metadata) {
  if (required<std::string>(metadata, "model") == "llama") return true;
  const auto pre = value_or<std::string>(metadata, "pre", "");
  return pre == "tekken" || cut_of_words(pre).pre_tokenizer == cut_of_words("llama-bpe").pre_tokenizer;
}

/// The step that puts tokens around a text.
Json ends_of_texts(const Metadata& metadata, const Tokens& tokens) {
  const auto first = token_of_role(metadata, tokens, "bos"), last = token_of_role(metadata, tokens, "eos");
  const auto sequence_part = [](const char* id) { return Json{{"Sequence", {{"id", id}, {"type_id", 0}}}}; };
  Json single = Json::array({sequence_part("A")}), known = Json::object();
  Json pair = Json::array({sequence_part("A"), sequence_part("B")});
  const auto add = [&](const std::string& token, const std::string& role, bool at_end) {
    const Json part = {{"SpecialToken", {{"id", token}, {"type_id", 0}}}};
    for (Json* text : {&single, &pair}) text->insert(at_end ? text->end() : text->begin(), part);
    known[token] = {
        {"id", token},
        {"ids", Json::array({*find_value<std::uint32_t>(metadata, "tokenizer.ggml." + role + "_token_id")})},
        {"tokens", Json::array({token})}};
  };
  const bool begins = value_or(metadata, "add_bos_token", usually_begins(metadata));
  const bool ends = value_or(metadata, "add_eos_token", false);
  if (first && begins) add(*first, "bos", false);
  if (last && ends) add(*last, "eos", true);
  if (known.empty()) return {};
  return {{"type", "TemplateProcessing"}, {"single", single}, {"pair", pair}, {"special_tokens", known}};
}

Json tokenizer_config(const Metadata& metadata, const Tokens& tokens) {
  Json config = {{"tokenizer_class", "PreTrainedTokenizerFast"}, {"clean_up_tokenization_spaces", false}};
  for (const auto& [name, role] : {std::pair{"bos_token", "bos"},
                                   {"eos_token", "eos"},
                                   {"unk_token", "unknown"},
                                   {"sep_token", "seperator"},
                                   {"pad_token", "padding"},
                                   {"mask_token", "mask"}})
    if (const auto token = token_of_role(metadata, tokens, role)) config[name] = *token;
  return config;
}

std::string text_of(const Json& json, int indent) {
  try {
    return json.dump(indent) + "\n";
  } catch (const Json::exception&) {
    throw CheckpointError("[gguf.tokenizer] a token is not UTF-8; the file is damaged");
  }
}

/// Letters, digits and underscores, as writers of GGUF files make them.
bool is_plain_name(const std::string& name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return c < 128 && (std::isalnum(c) != 0 || c == '_' || c == '-');
  });
}

}  // namespace

std::map<std::string, std::string> tokenizer_files(const Metadata& metadata) {
  const auto& model = required<std::string>(metadata, "model");
  if (model != "gpt2" && model != "llama")
    throw CheckpointError("[gguf.tokenizer] tokenizer.ggml.model '{}' is not known; gpt2 and llama are",
                          model.substr(0, 60));
  const Tokens tokens(metadata);
  Json tokenizer = model == "gpt2" ? byte_level(metadata, tokens) : byte_fallback(metadata, tokens);
  tokenizer.update({{"version", "1.0"}, {"truncation", nullptr}, {"padding", nullptr}});
  tokenizer["post_processor"] = ends_of_texts(metadata, tokens);
  if (tokenizer["post_processor"].is_null() && model == "gpt2")
    tokenizer["post_processor"] = {
        {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", false}, {"use_regex", true}};
  std::map<std::string, std::string> files = {
      {"tokenizer.json", text_of(tokenizer, -1)},
      {"tokenizer_config.json", text_of(tokenizer_config(metadata, tokens), 2)}};
  if (const auto* text = find<std::string>(metadata, "chat_template")) files["chat_template.jinja"] = *text;
  constexpr std::string_view kNamed = "tokenizer.chat_template.";
  for (const auto& [key, value] : metadata)
    if (const auto* text = std::get_if<std::string>(&value); text != nullptr && key.starts_with(kNamed))
      if (const std::string name = key.substr(kNamed.size()); is_plain_name(name))
        files[fmt::format("{}/{}.jinja", kTemplatesFolder, name)] = *text;
  return files;
}

}  // namespace layerpress::gguf
