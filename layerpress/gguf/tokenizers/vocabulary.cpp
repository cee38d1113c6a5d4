#include "layerpress/gguf/tokenizers/vocabulary.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

namespace layerpress::gguf {
namespace {

constexpr std::int64_t kMostTokens = std::int64_t{1} << 24;

/// Whether a token stands for a command although its file does not say so.
bool looks_special(const std::string& token) {
  for (const char* name : {"<pad>", "<mask>", "<2mass>", "[@BOS@]"})
    if (token == name) return true;
  return (token.starts_with("<|") && token.ends_with("|>")) || (token.starts_with("<｜") && token.ends_with("｜>")) ||
         (token.starts_with("<unused") && token.ends_with(">"));
}

/// "<0x0A>": a byte that no other token covers.
bool is_byte(const std::string& token) {
  return token.size() == 6 && token.starts_with("<0x") && token.back() == '>' &&
         token.find_first_not_of("0123456789ABCDEFabcdef", 3) == 5;
}

void replace_all(std::string& text, const std::string& from, const std::string& to) {
  for (std::size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
}

/// Whether a token is nothing but U+2581.
bool is_run_of_spaces(std::string token) {
  replace_all(token, "▁", "");
  return token.empty();
}

/// The two tokens of a merge, which files write as one text or as two.
std::pair<std::string, std::string> merge_parts(const Json& merge) {
  if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string())
    return {merge[0].get<std::string>(), merge[1].get<std::string>()};
  if (merge.is_string()) {
    const auto text = merge.get<std::string>();
    if (const std::size_t space = text.find(' ', 1); space != std::string::npos)
      return {text.substr(0, space), text.substr(space + 1)};
  }
  throw CheckpointError("[gguf.tokenizer] tokenizer.json: merge {} is not two tokens", merge.dump().substr(0, 80));
}

Json merges_of(const Json& tokenizer) {
  Json merges = json_get<Json>(tokenizer.at("model"), "merges", kTokenizerFile);
  if (!merges.is_array()) throw CheckpointError("[gguf.tokenizer] tokenizer.json: 'merges' is not a list");
  return merges;
}

}  // namespace

Vocabulary::Vocabulary(std::int64_t vocab_size) {
  if (vocab_size < 1 || vocab_size > kMostTokens)
    throw CheckpointError("[gguf.tokenizer] config.json: vocab_size {} is out of range", vocab_size);
  for (std::int64_t id = 0; id < vocab_size; ++id) tokens_.push_back("[PAD" + std::to_string(id) + "]");
  types_.assign(vocab_size, TokenType::kUnused);
  scores_.assign(vocab_size, kNoScore);
}

void Vocabulary::set(std::int64_t id, const std::string& token, TokenType type, float score) {
  if (id < 0 || id >= static_cast<std::int64_t>(tokens_.size()))
    throw CheckpointError("[gguf.tokenizer] token '{}' has id {}, but the model has ids 0 to {}", token.substr(0, 80),
                          id, tokens_.size() - 1);
  tokens_[id] = token;
  types_[id] = type;
  scores_[id] = score;
}

void Vocabulary::set_added(std::int64_t id, const std::string& token, bool special, bool spaces) {
  const bool known = id >= 0 && id < static_cast<std::int64_t>(tokens_.size()) && types_[id] != TokenType::kUnused;
  const float score = known ? scores_[id] : kNoScore;
  const bool unknown = known && types_[id] == TokenType::kUnknown;
  if (special || looks_special(token)) {
    set(id, token, unknown ? TokenType::kUnknown : TokenType::kControl, score);
    return;
  }
  std::string text = token;
  if (spaces) replace_all(text, "▁", " ");  // readers look for these tokens in the text as the user wrote it
  set(id, text, TokenType::kUserDefined, score);
}

std::vector<std::int32_t> Vocabulary::types() const {
  std::vector<std::int32_t> numbers;
  numbers.reserve(types_.size());
  for (const TokenType type : types_) numbers.push_back(static_cast<std::int32_t>(type));
  return numbers;
}

std::int64_t Vocabulary::find(const std::string& token) const {
  const auto found = std::find(tokens_.begin(), tokens_.end(), token);
  return found == tokens_.end() ? -1 : found - tokens_.begin();
}

void Vocabulary::check_distinct() const {
  std::unordered_set<std::string> seen;
  for (const std::string& token : tokens_) {
    if (token.empty())
      throw CheckpointError("[gguf.tokenizer] the tokenizer has an empty token, which llama.cpp cannot load");
    if (!seen.insert(token).second)
      throw CheckpointError("[gguf.tokenizer] two ids have token '{}', which llama.cpp cannot load",
                            token.substr(0, 80));
  }
}

Vocabulary read_vocabulary(const Json& tokenizer, bool byte_level, bool spaces, std::int64_t vocab_size) {
  Vocabulary vocabulary(vocab_size);
  const Json& model = tokenizer.at("model");
  const Json tokens = json_get<Json>(model, "vocab", kTokenizerFile);
  if (!tokens.is_object()) throw CheckpointError("[gguf.tokenizer] tokenizer.json: 'vocab' is not an object");
  const auto unknown = json_get_or<std::string>(model, "unk_token", kTokenizerFile, "");
  for (const auto& [token, id] : tokens.items()) {
    if (!id.is_number_integer())
      throw CheckpointError("[gguf.tokenizer] tokenizer.json: token '{}' has no id", token.substr(0, 80));
    TokenType type = !byte_level && is_byte(token) ? TokenType::kByte : TokenType::kNormal;
    if (!byte_level && token == unknown) type = TokenType::kUnknown;
    vocabulary.set(json_integer(id), token, type, kNoScore);
  }
  for (const Json& added : json_get_or<std::vector<Json>>(tokenizer, "added_tokens", kTokenizerFile, {})) {
    if (!added.is_object()) throw CheckpointError("[gguf.tokenizer] tokenizer.json: an added token is not an object");
    const auto content = json_get<std::string>(added, "content", kTokenizerFile);
    const bool special = json_get_or<bool>(added, "special", kTokenizerFile, false);
    const bool merged = tokens.contains(content);
    // Without such a normalizer spaces become this token by merges, as they become others, and in no other way.
    if (merged && !byte_level && !spaces && !special && is_run_of_spaces(content)) continue;
    const bool normalized = json_get_or<bool>(added, "normalized", kTokenizerFile, false);
    vocabulary.set_added(json_get<std::int64_t>(added, "id", kTokenizerFile), content, special,
                         spaces && (merged || normalized));
  }
  vocabulary.check_distinct();
  return vocabulary;
}

std::vector<std::string> read_merges(const Json& tokenizer) {
  std::vector<std::string> merges;
  for (const Json& merge : merges_of(tokenizer)) {
    auto [left, right] = merge_parts(merge);
    for (std::string* part : {&left, &right}) replace_all(*part, " ", "Ġ");
    merges.push_back(fmt::format("{} {}", left, right));
  }
  return merges;
}

void score_by_merges(const Json& tokenizer, Vocabulary& vocabulary) {
  std::unordered_map<std::string, std::int64_t> ids;
  for (std::size_t id = 0; id < vocabulary.tokens().size(); ++id) ids.emplace(vocabulary.tokens()[id], id);
  std::int64_t rank = 0;
  for (const Json& merge : merges_of(tokenizer)) {
    const auto [left, right] = merge_parts(merge);
    const auto found = ids.find(left + right);
    if (found != ids.end() && vocabulary.scores()[found->second] == kNoScore)
      vocabulary.set_score(found->second, -static_cast<float>(rank));
    ++rank;
  }
}

}  // namespace layerpress::gguf
