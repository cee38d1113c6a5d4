#include "layerpress/gguf/tokenizers/tokenizer.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <tuple>

#include "layerpress/base/error.h"
#include "layerpress/base/files/temporary_directory.h"
#include "layerpress/base/json.h"
#include "layerpress/gguf/tokenizers/tokenizer_files.h"

namespace layerpress::gguf {
namespace {

const char* const kQwenWords =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

class Tokenizer : public testing::Test {
 protected:
  void write(const std::string& file, const std::string& text) {
    std::ofstream(folder_.path() / file, std::ios::binary) << text;
  }
  void write(const std::string& file, const Json& json) { write(file, json.dump()); }
  Metadata read(std::int64_t vocab_size = 8) const { return tokenizer_keys(folder_.path(), vocab_size, "").metadata; }
  /// What the run says of a tokenizer.json.
  std::vector<std::string> notes(const Json& tokenizer) {
    write("tokenizer.json", tokenizer);
    return tokenizer_keys(folder_.path(), 300, "my model").notes;
  }

  /// The message of the CheckpointError that reading throws.
  std::string refusal(std::int64_t vocab_size = 8) const {
    try {
      read(vocab_size);
    } catch (const CheckpointError& error) {
      return error.what();
    }
    return "";
  }

  TemporaryDirectory folder_;
};

/// A byte-level tokenizer in the manner of Qwen 2: a, b, space, "ab", " a", and a command.
Json byte_level() {
  const Json split = {
      {"type", "Split"}, {"pattern", {{"Regex", kQwenWords}}}, {"behavior", "Isolated"}, {"invert", false}};
  const Json bytes = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  return {{"added_tokens", Json::array({{{"id", 5}, {"content", "<|im_end|>"}, {"special", true}}})},
          {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", {split, bytes}}}},
          {"model",
           {{"type", "BPE"},
            {"vocab", {{"a", 0}, {"b", 1}, {"Ġ", 2}, {"ab", 3}, {"Ġa", 4}}},
            {"merges", {"a b", {"Ġ", "a"}}}}}};
}

/// The token of a byte.
std::string byte_token(int byte) { return fmt::format("<0x{:02X}>", byte); }

/// The first id behind the tokens of byte_fallback().
constexpr std::int64_t kBehind = 7 + 255;

/// A tokenizer in the manner of Llama 2.
Json byte_fallback() {
  const Json prepend = {{"type", "Prepend"}, {"prepend", "▁"}};
  const Json replace = {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "▁"}};
  Json vocabulary = {{"<unk>", 0}, {"<s>", 1}, {"<0x0A>", 2}, {"▁", 3}, {"a", 4}, {"▁a", 5}, {"aa", 6}};
  for (int byte = 0; byte < 256; ++byte) vocabulary.emplace(byte_token(byte), vocabulary.size());
  return {{"added_tokens", Json::array({{{"id", 0}, {"content", "<unk>"}, {"special", true}},
                                        {{"id", 1}, {"content", "<s>"}, {"special", true}}})},
          {"normalizer", {{"type", "Sequence"}, {"normalizers", {prepend, replace}}}},
          {"model",
           {{"type", "BPE"},
            {"byte_fallback", true},
            {"unk_token", "<unk>"},
            {"vocab", std::move(vocabulary)},
            {"merges", Json::array({Json::array({"▁", "a"}), Json::array({"a", "a"})})}}}};
}

template <typename T>
T value_of(const Metadata& metadata, const std::string& key) {
  const T* value = find_value<T>(metadata, "tokenizer." + key);
  EXPECT_NE(value, nullptr) << key;
  return value == nullptr ? T() : *value;
}

TEST_F(Tokenizer, WritesByteLevelTokens) {
  write("tokenizer.json", byte_level());
  write("tokenizer_config.json",
        Json{{"eos_token", "<|im_end|>"}, {"bos_token", nullptr}, {"chat_template", "{{ x }}"}});
  const Metadata metadata = read();
  EXPECT_EQ(value_of<std::string>(metadata, "ggml.model"), "gpt2");
  EXPECT_EQ(value_of<std::string>(metadata, "ggml.pre"), "qwen2");
  const std::vector<std::string> tokens = {"a", "b", "Ġ", "ab", "Ġa", "<|im_end|>", "[PAD6]", "[PAD7]"};
  EXPECT_EQ(value_of<std::vector<std::string>>(metadata, "ggml.tokens"), tokens);
  EXPECT_EQ(value_of<std::vector<std::int32_t>>(metadata, "ggml.token_type"),
            (std::vector<std::int32_t>{1, 1, 1, 1, 1, 3, 5, 5}));
  EXPECT_EQ(value_of<std::vector<std::string>>(metadata, "ggml.merges"), (std::vector<std::string>{"a b", "Ġ a"}));
  EXPECT_EQ(value_of<std::uint32_t>(metadata, "ggml.eos_token_id"), 5);
  EXPECT_EQ(find_value<std::uint32_t>(metadata, "tokenizer.ggml.bos_token_id"), nullptr);
  EXPECT_FALSE(value_of<bool>(metadata, "ggml.add_bos_token"));
  EXPECT_EQ(value_of<std::string>(metadata, "chat_template"), "{{ x }}");
}

TEST_F(Tokenizer, ScoresByteFallbackTokensInTheOrderOfMerges) {
  Json tokenizer = byte_fallback();
  const Json first = {{"SpecialToken", {{"id", "<s>"}}}}, text = {{"Sequence", {{"id", "A"}}}};
  tokenizer["post_processor"] = {{"type", "TemplateProcessing"}, {"single", {first, text}}};
  write("tokenizer.json", tokenizer);
  write("tokenizer_config.json", Json{{"bos_token", {{"content", "<s>"}}}});
  const Metadata metadata = read(kBehind);
  EXPECT_EQ(value_of<std::string>(metadata, "ggml.model"), "llama");
  auto types = value_of<std::vector<std::int32_t>>(metadata, "ggml.token_type");
  types.resize(8);
  EXPECT_EQ(types, (std::vector<std::int32_t>{2, 3, 6, 1, 1, 1, 1, 6}));
  const auto scores = value_of<std::vector<float>>(metadata, "ggml.scores");
  EXPECT_GT(scores.at(5), scores.at(6));
  EXPECT_GT(scores.at(6), scores.at(4));
  EXPECT_TRUE(value_of<bool>(metadata, "ggml.add_space_prefix"));
  EXPECT_TRUE(value_of<bool>(metadata, "ggml.add_bos_token"));
}

TEST_F(Tokenizer, RefusesCharactersWithoutATokenOrBytes) {
  Json tokenizer = byte_fallback();
  tokenizer["model"]["byte_fallback"] = false;
  write("tokenizer.json", tokenizer);
  EXPECT_NE(refusal(kBehind).find("no byte fallback:"), std::string::npos);
  tokenizer = byte_fallback();
  for (int byte = 0; byte < 256; ++byte) tokenizer["model"]["vocab"].erase(byte_token(byte));
  write("tokenizer.json", tokenizer);
  EXPECT_NE(refusal(kBehind).find("no byte fallback:"), std::string::npos);
  tokenizer = byte_fallback();
  tokenizer["model"]["vocab"].erase("<0x61>");  // "a" itself is a token
  write("tokenizer.json", tokenizer);
  EXPECT_EQ(refusal(kBehind), "");
  for (const int byte : {0xC3, 0xFF}) tokenizer["model"]["vocab"].erase(byte_token(byte));
  write("tokenizer.json", tokenizer);
  EXPECT_NE(refusal(kBehind).find("no byte fallback for 2 of 256 bytes, such as <0xC3>"), std::string::npos);
}

TEST_F(Tokenizer, RefusesWordsThatTokensSpan) {
  Json tokenizer = byte_fallback();
  tokenizer["normalizer"] = nullptr;
  tokenizer["pre_tokenizer"] = {{"type", "Metaspace"}, {"replacement", "▁"}, {"split", true}};
  write("tokenizer.json", tokenizer);
  EXPECT_EQ(refusal(300), "");
  tokenizer["model"]["vocab"]["a▁"] = kBehind;
  for (const Json& split : {Json(true), Json()}) {
    tokenizer["pre_tokenizer"]["split"] = split;
    write("tokenizer.json", tokenizer);
    EXPECT_NE(refusal(300).find("tokens across such cuts, as \"a\\u2581\""), std::string::npos) << refusal(300);
  }
  tokenizer["pre_tokenizer"]["split"] = false;
  write("tokenizer.json", tokenizer);
  EXPECT_EQ(refusal(300), "");
  tokenizer["pre_tokenizer"]["replacement"] = "_";
  write("tokenizer.json", tokenizer);
  EXPECT_NE(refusal(300).find("llama.cpp has no pre-tokenizer"), std::string::npos) << refusal(300);
}

TEST_F(Tokenizer, TakesAddedTokensForSpacesWhereItsNormalizerWritesThem) {
  enum Kind { kNew, kNormalized, kOfTheModel };
  // The text and the type of an added token, and whether something is said of it.
  const auto added = [&](Json tokenizer, Kind kind, const std::string& token = "▁▁") {
    const std::int64_t id = tokenizer["model"]["vocab"].size() + 1;
    if (kind == kOfTheModel) tokenizer["model"]["vocab"][token] = id;
    tokenizer["added_tokens"].push_back({{"id", id}, {"content", token}, {"normalized", kind == kNormalized}});
    write("tokenizer.json", tokenizer);
    const TokenizerKeys keys = tokenizer_keys(folder_.path(), 300, "my model");
    const bool said = std::any_of(keys.notes.begin(), keys.notes.end(), [](const std::string& note) {
      return note.find("may make added tokens with U+2581") != std::string::npos;
    });
    return std::tuple(value_of<std::vector<std::string>>(keys.metadata, "ggml.tokens").at(id),
                      value_of<std::vector<std::int32_t>>(keys.metadata, "ggml.token_type").at(id), said);
  };
  const std::string spaces = "  ", itself = "▁▁";
  EXPECT_EQ(added(byte_fallback(), kOfTheModel), std::tuple(spaces, 4, false));  // as Gemma's
  EXPECT_EQ(added(byte_fallback(), kNormalized), std::tuple(spaces, 4, false));
  EXPECT_EQ(added(byte_fallback(), kNew), std::tuple(itself, 4, true));
  Json metaspace = byte_fallback();
  metaspace["normalizer"] = nullptr;
  metaspace["pre_tokenizer"] = {{"type", "Metaspace"}, {"replacement", "▁"}, {"split", false}};
  EXPECT_EQ(added(metaspace, kOfTheModel), std::tuple(itself, 1, false));  // merges make it
  EXPECT_EQ(added(metaspace, kOfTheModel, "<to▁do>"), std::tuple(std::string("<to▁do>"), 4, true));
  EXPECT_EQ(added(metaspace, kNormalized), std::tuple(itself, 4, true));
  EXPECT_EQ(added(byte_level(), kNew), std::tuple(itself, 4, false));
}

TEST_F(Tokenizer, SaysThatMergesAreLeftOutByChance) {
  Json tokenizer = byte_level();
  tokenizer["model"]["dropout"] = 0;
  EXPECT_TRUE(notes(tokenizer).empty());
  tokenizer["model"]["dropout"] = 0.1;
  ASSERT_EQ(notes(tokenizer).size(), 1);
  EXPECT_NE(notes(tokenizer).front().find("(dropout 0.1)"), std::string::npos);
}

TEST_F(Tokenizer, TakesTheEndsOfOtherPostProcessors) {
  write("tokenizer_config.json", Json{{"bos_token", "a"}, {"eos_token", "<|im_end|>"}});
  for (const char* type : {"RobertaProcessing", "BertProcessing"}) {
    Json tokenizer = byte_level();
    tokenizer["post_processor"] = {
        {"type", type}, {"cls", Json::array({"a", 0})}, {"sep", Json::array({"<|im_end|>", 5})}};
    EXPECT_TRUE(notes(tokenizer).empty());
    EXPECT_TRUE(value_of<bool>(read(), "ggml.add_bos_token"));
    EXPECT_TRUE(value_of<bool>(read(), "ggml.add_eos_token"));
    tokenizer["post_processor"]["cls"][0] = "b";
    ASSERT_EQ(notes(tokenizer).size(), 1);
    EXPECT_NE(notes(tokenizer).front().find("puts b, <|im_end|> around texts"), std::string::npos);
    EXPECT_FALSE(value_of<bool>(read(), "ggml.add_bos_token"));
  }
  Json tokenizer = byte_level();
  tokenizer["post_processor"] = {{"type", "Sequence"}, {"processors", {{{"type", "ByteLevel"}}, {{"type", "Other"}}}}};
  write("tokenizer.json", tokenizer);
  EXPECT_NE(refusal().find("a post-processor of type Other"), std::string::npos) << refusal();
}

TEST_F(Tokenizer, SaysWhereSpacesAroundAddedTokensAreKept) {
  const auto notes = [&](const Json& flags, const std::string& name) {
    Json tokenizer = byte_fallback();
    tokenizer["added_tokens"][1].update(flags);
    std::int64_t id = kBehind;  // those without which llama.cpp does not load a model with such a name
    for (const char* token : {"</s>", "<|endoftext|>"})
      tokenizer["added_tokens"].push_back({{"id", id++}, {"content", token}, {"special", true}});
    write("tokenizer.json", tokenizer);
    return tokenizer_keys(folder_.path(), id, name).notes;
  };
  EXPECT_TRUE(notes(Json::object(), "my model").empty());
  EXPECT_TRUE(notes({{"rstrip", true}}, "Phi-3-mini").empty());  // where llama.cpp strips them itself
  ASSERT_EQ(notes({{"rstrip", true}}, "my model").size(), 1);
  EXPECT_NE(notes({{"rstrip", true}}, "my model").front().find("phi-3"), std::string::npos);
  ASSERT_EQ(notes({{"lstrip", true}}, "Phi-3-mini").size(), 1);
  EXPECT_NE(notes({{"single_word", true}}, "my model").front().find("\"<s>\""), std::string::npos);
}

TEST_F(Tokenizer, SaysWhereLlamaCppAddsSpaces) {
  const auto notes = [&](const char* scheme) {
    Json tokenizer = byte_fallback();
    tokenizer["normalizer"] = nullptr;
    tokenizer["pre_tokenizer"] = {{"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", scheme}};
    write("tokenizer.json", tokenizer);
    return tokenizer_keys(folder_.path(), kBehind, "my model").notes;
  };
  EXPECT_TRUE(notes("never").empty());
  ASSERT_EQ(notes("always").size(), 1);
  EXPECT_NE(notes("always").front().find("also behind special tokens"), std::string::npos);
  ASSERT_EQ(notes("first").size(), 1);
  EXPECT_NE(notes("first").front().find("and before text behind special tokens"), std::string::npos);
}

TEST_F(Tokenizer, SaysWhereLlamaCppAddsTokensThatTokenizerJsonDoesNotAdd) {
  Json tokenizer = byte_fallback();
  write("tokenizer.json", tokenizer);
  write("tokenizer_config.json", Json{{"bos_token", "<s>"}, {"add_bos_token", true}});
  const TokenizerKeys keys = tokenizer_keys(folder_.path(), kBehind, "my model");
  EXPECT_TRUE(value_of<bool>(keys.metadata, "ggml.add_bos_token"));
  ASSERT_EQ(keys.notes.size(), 1);
  EXPECT_NE(keys.notes.front().find("puts <s> before texts"), std::string::npos) << keys.notes.front();
  const Json first = {{"SpecialToken", {{"id", "<s>"}}}}, text = {{"Sequence", {{"id", "A"}}}};
  tokenizer["post_processor"] = {{"type", "TemplateProcessing"}, {"single", {first, text}}};
  write("tokenizer.json", tokenizer);
  EXPECT_TRUE(tokenizer_keys(folder_.path(), kBehind, "my model").notes.empty());
  const Json other = {{"SpecialToken", {{"id", "<unk>"}}}};
  for (const Json& single : {Json{first, other, text}, Json{other, text}, Json{first, text, other}}) {
    tokenizer["post_processor"]["single"] = single;
    write("tokenizer.json", tokenizer);
    const auto notes = tokenizer_keys(folder_.path(), kBehind, "my model").notes;
    ASSERT_EQ(notes.size(), 1) << single;
    EXPECT_NE(notes.front().find("<unk> around texts, of which llama.cpp adds"), std::string::npos) << notes.front();
  }
}

TEST_F(Tokenizer, SaysWhichAddedTokensAreLookedForInNormalizedText) {
  Json tokenizer = byte_fallback();
  tokenizer["added_tokens"].push_back({{"id", kBehind}, {"content", "<tool>"}, {"normalized", true}});
  write("tokenizer.json", tokenizer);
  const auto notes = tokenizer_keys(folder_.path(), kBehind + 1, "my model").notes;
  ASSERT_EQ(notes.size(), 1);
  EXPECT_NE(notes.front().find("(such as \"<tool>\") before it normalizes"), std::string::npos) << notes.front();
}

TEST_F(Tokenizer, StripsBehindTokensOfPhi3AsLlamaCppDoes) {
  Json tokenizer = byte_fallback();
  tokenizer["added_tokens"].push_back({{"id", kBehind}, {"content", "<|user|>"}, {"special", true}});
  write("tokenizer.json", tokenizer);
  for (const auto& [name, strips] : {std::pair{"My Phi-3", true}, {"my model", false}}) {
    Metadata metadata = read(kBehind + 1);
    metadata.emplace_back("general.name", std::string(name));
    const Json added = Json::parse(tokenizer_files(metadata).at("tokenizer.json")).at("added_tokens");
    ASSERT_EQ(added.size(), 3);
    EXPECT_EQ(added[0]["rstrip"], false);  // <unk>
    EXPECT_EQ(added[1]["rstrip"], false);  // <s>
    EXPECT_EQ(added[2]["rstrip"], strips) << name;
  }
}

TEST_F(Tokenizer, TakesTheTemplateOfItsFileAndNamesSeveral) {
  write("tokenizer.json", byte_level());
  const Json several = {{{"name", "default"}, {"template", "d"}}, {{"name", "tools"}, {"template", "t"}}};
  write("tokenizer_config.json", Json{{"chat_template", several}});
  EXPECT_EQ(value_of<std::string>(read(), "chat_template"), "d");
  EXPECT_EQ(value_of<std::string>(read(), "chat_template.tools"), "t");
  EXPECT_EQ(value_of<std::vector<std::string>>(read(), "chat_templates"), std::vector<std::string>{"tools"});
  write("chat_template.jinja", std::string("file"));
  EXPECT_EQ(value_of<std::string>(read(), "chat_template"), "file");
  std::filesystem::create_directories(folder_.path() / "additional_chat_templates");
  write("additional_chat_templates/tool-use.jinja", std::string("t2"));
  EXPECT_EQ(value_of<std::string>(read(), "chat_template"), "file");
  EXPECT_EQ(value_of<std::string>(read(), "chat_template.tool_use"), "t2");
  EXPECT_EQ(value_of<std::vector<std::string>>(read(), "chat_templates"), std::vector<std::string>{"tool_use"});
  Metadata metadata = read();
  metadata.emplace_back("tokenizer.chat_template.../../evil", std::string("e"));
  const auto files = tokenizer_files(metadata);
  EXPECT_EQ(files.at("chat_template.jinja"), "file");
  EXPECT_EQ(files.at("additional_chat_templates/tool_use.jinja"), "t2");
  EXPECT_EQ(files.size(), 4);  // with tokenizer.json and its config
}

TEST_F(Tokenizer, RefusesWhatLlamaCppDoesNotHave) {
  const std::vector<std::pair<Json, std::string>> changes = {
      {{{"op", "replace"}, {"path", "/model/type"}, {"value", "Unigram"}}, "Unigram"},
      {{{"op", "replace"}, {"path", "/pre_tokenizer/pretokenizers/0/pattern/Regex"}, {"value", "x+y"}}, "x+y"},
      {{{"op", "replace"}, {"path", "/pre_tokenizer/pretokenizers/0/behavior"}, {"value", "MergedWithNext"}},
       "MergedWithNext"},
      {{{"op", "replace"}, {"path", "/pre_tokenizer/pretokenizers/0/type"}, {"value", "BertPreTokenizer"}},
       "BertPreTokenizer"},
      {{{"op", "replace"}, {"path", "/pre_tokenizer/pretokenizers/1/add_prefix_space"}, {"value", true}},
       "add_prefix_space"},
      {{{"op", "add"}, {"path", "/model/ignore_merges"}, {"value", true}}, "whole words"},
      {{{"op", "add"}, {"path", "/model/end_of_word_suffix"}, {"value", "</w>"}}, "end_of_word_suffix"},
      {{{"op", "add"}, {"path", "/normalizer"}, {"value", {{"type", "Lowercase"}}}}, "Lowercase"}};
  for (const auto& [change, named] : changes) {
    write("tokenizer.json", byte_level().patch(Json::array({change})));
    EXPECT_NE(refusal().find(named), std::string::npos) << named << ": " << refusal();
  }
}

TEST_F(Tokenizer, RefusesDamagedFiles) {
  const std::vector<std::pair<Json, std::string>> changes = {
      {{{"op", "replace"}, {"path", "/model/vocab/a"}, {"value", 100}}, "has id 100"},
      {{{"op", "replace"}, {"path", "/model/vocab/a"}, {"value", -1}}, "has id -1"},
      {{{"op", "replace"}, {"path", "/model/vocab/a"}, {"value", "x"}}, "has no id"},
      {{{"op", "replace"}, {"path", "/model/vocab"}, {"value", 7}}, "'vocab' is not an object"},
      {{{"op", "replace"}, {"path", "/model/merges"}, {"value", {"ab"}}}, "is not two tokens"},
      {{{"op", "replace"}, {"path", "/model/merges"}, {"value", 3}}, "'merges' is not a list"},
      {{{"op", "replace"}, {"path", "/model"}, {"value", 3}}, "'model' is not an object"},
      {{{"op", "replace"}, {"path", "/added_tokens/0"}, {"value", 3}}, "not an object"},
      {{{"op", "replace"}, {"path", "/added_tokens/0/content"}, {"value", "a"}}, "two ids have token 'a'"},
      {{{"op", "replace"}, {"path", "/added_tokens/0/content"}, {"value", ""}}, "empty token"},
      {{{"op", "replace"}, {"path", "/pre_tokenizer"}, {"value", 3}}, "'type' is missing"}};
  for (const auto& [change, named] : changes) {
    write("tokenizer.json", byte_level().patch(Json::array({change})));
    EXPECT_NE(refusal().find(named), std::string::npos) << named << ": " << refusal();
  }
  write("tokenizer.json", byte_level());
  EXPECT_NE(refusal(std::int64_t{1} << 40).find("vocab_size"), std::string::npos);
  std::filesystem::remove(folder_.path() / "tokenizer.json");
  EXPECT_NE(refusal().find("neither tokenizer.json nor tokenizer.model"), std::string::npos);
}

// Fields of Protocol Buffers.
std::string varint_field(int number, int value) { return {static_cast<char>(number << 3), static_cast<char>(value)}; }
std::string bytes_field(int number, const std::string& bytes) {
  return std::string{static_cast<char>(number << 3 | 2), static_cast<char>(bytes.size())} + bytes;
}
std::string piece(const std::string& text, float score, int type) {
  std::string bytes(sizeof(float), '\0');
  std::memcpy(bytes.data(), &score, sizeof(float));
  return bytes_field(1,
                     bytes_field(1, text) + std::string{static_cast<char>(2 << 3 | 5)} + bytes + varint_field(3, type));
}

/// A model of pairs whose text gets no space before it, with tokens of so many bytes.
std::string sentencepiece_file(int bytes = 256) {
  std::string pieces =
      piece("<unk>", 0, 2) + piece("<s>", 0, 3) + piece("<0x0A>", 0, 6) + piece("▁a", -1.5, 1) + piece("▁▁", -2, 4);
  for (int byte = 0; byte < bytes; ++byte)
    if (byte != 0x0A) pieces += piece(byte_token(byte), 0, 6);
  return pieces + bytes_field(2, varint_field(3, 2)) + bytes_field(3, varint_field(3, 0) + varint_field(4, 0));
}

TEST_F(Tokenizer, ReadsSentencePieceFiles) {
  write("tokenizer.model", sentencepiece_file());
  write("added_tokens.json", Json{{"<extra>", 260}});
  write("config.json", Json{{"bos_token_id", 1}, {"eos_token_id", {2, 3}}});
  const Metadata metadata = read(262);
  auto tokens = value_of<std::vector<std::string>>(metadata, "ggml.tokens");
  auto types = value_of<std::vector<std::int32_t>>(metadata, "ggml.token_type");
  ASSERT_EQ(tokens.size(), 262);
  tokens.erase(tokens.begin() + 5, tokens.begin() + 260);  // the other bytes
  types.erase(types.begin() + 5, types.begin() + 260);
  EXPECT_EQ(tokens, (std::vector<std::string>{"<unk>", "<s>", "<0x0A>", "▁a", "  ", "<extra>", "[PAD261]"}));
  EXPECT_EQ(types, (std::vector<std::int32_t>{2, 3, 6, 1, 4, 4, 5}));
  EXPECT_EQ(value_of<std::vector<float>>(metadata, "ggml.scores").at(3), -1.5F);
  EXPECT_FALSE(value_of<bool>(metadata, "ggml.add_space_prefix"));
  EXPECT_TRUE(value_of<bool>(metadata, "ggml.add_bos_token"));
  EXPECT_EQ(value_of<std::uint32_t>(metadata, "ggml.bos_token_id"), 1);
}

TEST_F(Tokenizer, RefusesDamagedSentencePieceFiles) {
  const std::string whole = sentencepiece_file(0);
  for (std::size_t size = 0; size < whole.size();
       ++size) {  // cut anywhere: refused, or a shorter file that is well-formed
    write("tokenizer.model", whole.substr(0, size));
    try {
      read();
    } catch (const CheckpointError&) {
    } catch (const IoError&) {
    }
  }
  const std::vector<std::pair<std::string, std::string>> files = {
      {std::string("\x0a\x7f"), "ends behind"},
      {std::string("\x0a") + std::string(11, '\xff'), "64 bits"},
      {std::string("\x0b\x00", 2), "unknown kind"},
      {bytes_field(1, bytes_field(2, "x")), "no float"},
      {piece("a", 0, 9), "unknown type"},
      {bytes_field(2, varint_field(3, 1)), "not a BPE model"},
      {bytes_field(3, varint_field(4, 1)), "normalizes text"},
      {varint_field(9, 1), "no tokens"}};
  for (const auto& [file, named] : files) {
    write("tokenizer.model", file);
    EXPECT_NE(refusal().find(named), std::string::npos) << named << ": " << refusal();
  }
  write("tokenizer.model", whole);
  EXPECT_NE(refusal(3).find("has id 3"), std::string::npos);
  EXPECT_NE(refusal().find("for 255 of 256 bytes, such as <0x00>"), std::string::npos) << refusal();
}

void expect_refused(const Metadata& metadata, const std::string& fragment) {
  try {
    (void)tokenizer_files(metadata);
    ADD_FAILURE() << "no error: " << fragment;
  } catch (const CheckpointError& error) {
    EXPECT_NE(std::string(error.what()).find(fragment), std::string::npos) << error.what();
  }
}

template <typename T>
T& value_of(Metadata& metadata, const std::string& key) {
  for (auto& [name, value] : metadata)
    if (name == "tokenizer.ggml." + key) return std::get<T>(value);
  throw std::out_of_range(key);
}

TEST_F(Tokenizer, IsReadFromTheTypesThatReadersInsistOn) {
  write("tokenizer.json", byte_level());
  write("config.json", Json{{"bos_token_id", 1}});
  const Metadata metadata = read();
  EXPECT_TRUE(tokenizer_files(metadata).contains("tokenizer.json"));
  for (std::size_t i = 0; i < metadata.size(); ++i) {
    const std::string key = metadata[i].first;
    if (key.rfind("tokenizer.", 0) != 0) continue;
    Metadata damaged = metadata;
    damaged[i].second = std::int8_t{1};
    expect_refused(damaged, key + " has another type");
  }
}

TEST_F(Tokenizer, ThatContradictsItselfIsRefused) {
  write("tokenizer.json", byte_level());
  write("config.json", Json{{"bos_token_id", 1}});
  const Metadata whole = read();
  Metadata metadata = whole;
  value_of<std::uint32_t>(metadata, "bos_token_id") = 99999;
  expect_refused(metadata, "bos_token_id is 99999, but there are");
  metadata = whole;
  value_of<std::vector<std::int32_t>>(metadata, "token_type").front() = 77;
  expect_refused(metadata, "token 0 has type 77");
  metadata = whole;
  auto& tokens = value_of<std::vector<std::string>>(metadata, "tokens");
  tokens[1] = tokens[0];
  expect_refused(metadata, "tokens 0 and 1 are both");
  metadata = whole;
  value_of<std::vector<std::string>>(metadata, "merges").emplace_back("q z");
  expect_refused(metadata, "merge 'q z' needs");
}

}  // namespace
}  // namespace layerpress::gguf
