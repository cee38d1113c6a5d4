#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "layerpress/base/json.h"

namespace layerpress::gguf {

inline constexpr const char* kTokenizerFile = "tokenizer.json";

/// Lower than the score of any merge, so that nothing is merged into such a token before everything else.
inline constexpr float kNoScore = -1e9F;

/// llama.cpp's kinds of tokens, with its numbers.
enum class TokenType : std::int32_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6
};

/// The tokens of a model, with ids from 0 to vocab_size - 1; ids that the tokenizer does not give are unused.
class Vocabulary {
 public:
  explicit Vocabulary(std::int64_t vocab_size);

  /// Throws CheckpointError if the id is not one of the model's.
  void set(std::int64_t id, const std::string& token, TokenType type, float score);
  /// Marks tokens that are not a part of usual text. A token that the vocabulary has keeps its score. `spaces`: U+2581 stands for a space.
  void set_added(std::int64_t id, const std::string& token, bool special, bool spaces);

  const std::vector<std::string>& tokens() const { return tokens_; }
  const std::vector<float>& scores() const { return scores_; }
  std::vector<std::int32_t> types() const;
  TokenType type(std::int64_t id) const { return types_.at(id); }
  void set_score(std::int64_t id, float score) { scores_.at(id) = score; }
  /// The id of a token; -1 if there is none.
  std::int64_t find(const std::string& token) const;
  /// Throws CheckpointError if two ids have one token, which llama.cpp cannot load.
  void check_distinct() const;

 private:
  std::vector<std::string> tokens_;
  std::vector<TokenType> types_;
  std::vector<float> scores_;
};

/// The tokens of tokenizer.json's model and its added tokens. `byte_level`: tokens are written in the alphabet of bytes, so that no
/// token stands for a byte or for unknown text. `spaces`: the normalizer writes spaces as U+2581.
Vocabulary read_vocabulary(const Json& tokenizer, bool byte_level, bool spaces, std::int64_t vocab_size);

/// The merges of tokenizer.json, each two tokens with a space between; spaces inside tokens are written as U+0120.
std::vector<std::string> read_merges(const Json& tokenizer);

/// Gives tokens the scores that make SentencePiece's algorithm merge in the order of tokenizer.json's merges.
void score_by_merges(const Json& tokenizer, Vocabulary& vocabulary);

}  // namespace layerpress::gguf
