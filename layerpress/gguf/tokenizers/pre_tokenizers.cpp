#include "layerpress/gguf/tokenizers/pre_tokenizers.h"

#include <map>
#include <optional>
#include <vector>

#include "layerpress/base/text.h"
#include "layerpress/gguf/tokenizers/vocabulary.h"

namespace layerpress::gguf {
namespace {

// Steps besides regular expressions.
constexpr const char* kDigits = "digits one by one";
/// What ByteLevel does unless told otherwise, which some files write as a Split.
constexpr const char* kGpt2 = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// Parts of the expressions of several families.
const std::string& contractions() {
  static const std::string kText = R"((?i:'s|'t|'re|'ve|'m|'ll|'d))";
  return kText;
}

/// Words, numbers of up to `digits` ("{1,3}"), and signs.
std::string words_expression(const std::string& digits) {
  return contractions() + R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N})" + digits +
         R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
}

/// Words that end where capitals begin, with `ending` behind them.
std::string cased_expression(const std::string& ending, const std::string& digits) {
  return R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)" + ending +
         R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)" + ending + R"(|\p{N})" +
         digits + R"(| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
}

constexpr const char* kQwen35Rest =
    R"(|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kDeepseekWords =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|)"
    R"(\s*[\r\n]+|\s+(?!\S)|\s+)";

struct PreTokenizer {
  std::string name;
  std::vector<std::string> steps;
  std::optional<bool> ignores_merges{};  ///< what the model's ignore_merges is, if it matters
  std::string token{};                   ///< a token that the vocabulary has, if it matters
};

/// The first that fits is taken. Where llama.cpp has several names for one way, this is the commonest.
const std::vector<PreTokenizer>& known() {
  const std::string llama3 = words_expression("{1,3}");
  static const std::vector<PreTokenizer> kAll = {
      {"glm4", {llama3}, true, "[gMASK]"},
      {"chatglm-bpe", {llama3}, false, "[gMASK]"},
      {"llama-bpe", {llama3}, true},
      {"dbrx", {llama3}, false},
      {"qwen2", {words_expression("")}, false},
      {"qwen35", {contractions() + kQwen35Rest}, false},
      {"gpt-4o", {cased_expression(contractions() + "?", "{1,3}")}},
      {"tekken", {cased_expression("", "")}, true},
      {"smollm", {kDigits, kGpt2}, false},
      {"gpt-2", {kGpt2}, false},
      {"deepseek-v3", {R"(\p{N}{1,3})", "[一-龥぀-ゟ゠-ヿ]+", kDeepseekWords}, false},
      {"deepseek-coder", {"[\r\n]", R"(\s?\p{L}+)", R"(\s?\p{P}+)", "[一-龥ࠀ-一가-퟿]+", kDigits}, false},
  };
  return kAll;
}

/// Some files write line ends as characters in their expressions, and some as escapes.
std::string with_escapes(const std::string& expression) {
  std::string result;
  for (const char letter : expression) {
    if (letter == '\r') {
      result += "\\r";
    } else if (letter == '\n') {
      result += "\\n";
    } else {
      result += letter;
    }
  }
  return result;
}

[[noreturn]] void refuse_cut(const std::string& what) {
  throw CheckpointError(
      "[gguf.tokenizer] tokenizer.json: llama.cpp has no name for {}; write compressed-tensors instead",
      what.substr(0, 300));
}

/// The expression at whose matches a Split step cuts, with the matches as words.
std::string split_expression(const Json& step) {
  const auto behavior = json_get<std::string>(step, "behavior", kTokenizerFile);
  const bool inverted = json_get_or<bool>(step, "invert", kTokenizerFile, false);
  const Json pattern = json_get<Json>(step, "pattern", kTokenizerFile);
  if ((behavior != "Isolated" || inverted) && (behavior != "Removed" || !inverted))
    refuse_cut("pre-tokenizer Split with behavior " + behavior);
  if (!pattern.is_object() || !pattern.contains("Regex")) refuse_cut("pre-tokenizer Split at " + pattern.dump());
  return json_get<std::string>(pattern, "Regex", kTokenizerFile);
}

void collect_steps(const Json& step, std::vector<std::string>& steps) {
  if (!step.is_object()) refuse_cut("a pre-tokenizer that is " + step.dump());
  const auto type = json_get<std::string>(step, "type", kTokenizerFile);
  if (type == "Sequence") {
    for (const Json& inner : json_get<Json>(step, "pretokenizers", kTokenizerFile)) collect_steps(inner, steps);
  } else if (type == "ByteLevel") {
    if (json_get_or<bool>(step, "add_prefix_space", kTokenizerFile, true))
      refuse_cut("pre-tokenizer ByteLevel with add_prefix_space");
    if (json_get_or<bool>(step, "use_regex", kTokenizerFile, true)) steps.push_back(kGpt2);
  } else if (type == "Digits" && json_get_or<bool>(step, "individual_digits", kTokenizerFile, false)) {
    steps.push_back(kDigits);
  } else if (type == "Split") {
    steps.push_back(split_expression(step));
  } else {
    refuse_cut("pre-tokenizer " + type);
  }
}

bool same_steps(const std::vector<std::string>& one, const std::vector<std::string>& other) {
  if (one.size() != other.size()) return false;
  for (std::size_t i = 0; i < one.size(); ++i)
    if (with_escapes(one[i]) != with_escapes(other[i])) return false;
  return true;
}

/// The expressions of DeepSeek LLM and V2, one of which lists the letters of every alphabet.
bool is_deepseek_llm(const std::vector<std::string>& steps) {
  return steps.size() == 6 && with_escapes(steps[0]) == R"([\r\n])" && steps[1].starts_with(R"(\s?[A-Za-zµ)") &&
         steps[2] == R"(\s?[!-/:-~！-／：-～‘-‟　-。]+)" && steps[3] == R"(\s+$)" &&
         steps[4] == "[一-龥ࠀ-一가-퟿]+" && steps[5] == kDigits;
}

bool has_token(const Json& tokenizer, const std::string& token) {
  for (const Json& added : tokenizer.value("added_tokens", Json::array()))
    if (added.is_object() && added.value("content", Json()) == token) return true;
  return false;
}

/// llama.cpp cuts words in the same way under several names.
const std::string& usual_name(const std::string& name) {
  static const std::map<std::string, std::string> kOthers = {{"llama3", "llama-bpe"},
                                                             {"llama-v3", "llama-bpe"},
                                                             {"falcon3", "llama-bpe"},
                                                             {"falcon-h1", "llama-bpe"},
                                                             {"pixtral", "llama-bpe"},
                                                             {"lfm2", "llama-bpe"},
                                                             {"midm-2.0", "llama-bpe"},
                                                             {"smaug-bpe", "dbrx"},
                                                             {"deepseek-r1-qwen", "qwen2"},
                                                             {"megrez", "qwen2"},
                                                             {"stablelm2", "qwen2"},
                                                             {"llama4", "gpt-4o"},
                                                             {"starcoder", "smollm"},
                                                             {"refact", "smollm"},
                                                             {"command-r", "smollm"},
                                                             {"codeshell", "smollm"},
                                                             {"exaone", "smollm"},
                                                             {"minerva-7b", "smollm"},
                                                             {"gpt2", "gpt-2"},
                                                             {"phi-2", "gpt-2"},
                                                             {"olmo", "gpt-2"},
                                                             {"jais", "gpt-2"},
                                                             {"hunyuan-dense", "deepseek-v3"}};
  const auto found = kOthers.find(name);
  return found == kOthers.end() ? name : found->second;
}

}  // namespace

std::string pre_tokenizer_name(const Json& tokenizer) {
  std::vector<std::string> steps;
  if (!json_has(tokenizer, "pre_tokenizer")) refuse_cut("a byte-level tokenizer without a pre-tokenizer");
  collect_steps(tokenizer["pre_tokenizer"], steps);
  const bool ignores_merges = json_get_or<bool>(tokenizer.at("model"), "ignore_merges", kTokenizerFile, false);
  for (const PreTokenizer& candidate : known()) {
    if (same_steps(steps, candidate.steps) && candidate.ignores_merges.value_or(ignores_merges) == ignores_merges &&
        (candidate.token.empty() || has_token(tokenizer, candidate.token)))
      return candidate.name;
  }
  if (is_deepseek_llm(steps)) return "deepseek-llm";
  refuse_cut(fmt::format("a pre-tokenizer that cuts at {}{}", join(steps, "  then at  "),
                         ignores_merges ? " and takes whole words first" : ""));
}

CutOfWords cut_of_words(const std::string& name) {
  const std::string& usual = usual_name(name);
  std::vector<std::string> names;
  for (const PreTokenizer& candidate : known()) {
    names.push_back(candidate.name);
    if (candidate.name != usual) continue;
    CutOfWords cut{.ignores_merges = candidate.ignores_merges.value_or(false)};
    Json steps = Json::array();
    for (const std::string& step : candidate.steps) {
      if (step == kDigits)
        steps.push_back({{"type", "Digits"}, {"individual_digits", true}});
      else
        steps.push_back(
            {{"type", "Split"}, {"pattern", {{"Regex", step}}}, {"behavior", "Isolated"}, {"invert", false}});
    }
    steps.push_back({{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}});
    cut.pre_tokenizer = {{"type", "Sequence"}, {"pretokenizers", std::move(steps)}};
    if (usual == "qwen2" || usual == "qwen35") cut.normalizer = {{"type", "NFC"}};
    return cut;
  }
  throw CheckpointError("[gguf.tokenizer] tokenizer.ggml.pre '{}' is not known; {}", name.substr(0, 60),
                        nearest_or_all(name, names));
}

void check_normalizer(const Json& tokenizer) {
  if (!json_has(tokenizer, "normalizer")) return;
  const Json& normalizer = tokenizer["normalizer"];
  const auto type = json_get<std::string>(normalizer, "type", kTokenizerFile);
  if (type == "NFC") return;  // llama.cpp takes text as it is, which nearly always is in this form
  if (type == "Sequence" && normalizer.value("normalizers", Json::array()).empty()) return;
  refuse_cut("a byte-level tokenizer with normalizer " + type);
}

}  // namespace layerpress::gguf
