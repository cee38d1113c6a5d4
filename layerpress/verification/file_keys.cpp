#include "layerpress/verification/file_keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <type_traits>

#include "layerpress/base/error.h"
#include "layerpress/gguf/tokenizers/pre_tokenizers.h"
#include "layerpress/gguf/tokenizers/tokenizer_files.h"

namespace layerpress::verification {
namespace {

template <typename Element>
bool differs(const Element& a, const Element& b) {
  if constexpr (std::is_floating_point_v<Element>)
    return !(std::abs(a - b) <= static_cast<Element>(1e-5) * std::max(std::abs(a), std::abs(b)));
  else
    return a != b;
}

template <typename Element>
std::string shown(const Element& value) {
  if constexpr (std::is_same_v<Element, std::string>)
    return "'" + (value.size() > 40 ? value.substr(0, 40) + "..." : value) + "'";
  else
    return fmt::format("{}", value);
}

template <typename Own, typename Other>
std::string said_of(const Own& own, const Other& other) {
  return fmt::format("is {}, the source's is {}", shown(own), shown(other));
}

/// What tells two values apart, "" where nothing does; numbers may have other widths.
template <typename Own, typename Other>
std::string difference(const Own& own, const Other& other) {
  if constexpr (std::is_arithmetic_v<Own> && std::is_arithmetic_v<Other>)
    return differs(static_cast<double>(own), static_cast<double>(other)) ? said_of(own, other) : "";
  else if constexpr (std::is_same_v<Own, Other>)
    return own != other ? said_of(own, other) : "";
  else
    return "is of another type than the source's";
}

template <typename Element>
std::string difference(const std::vector<Element>& own, const std::vector<Element>& other) {
  if (own.size() != other.size()) return fmt::format("has {} values, the source's {}", own.size(), other.size());
  std::size_t i = 0;
  while (i < own.size() && !differs<Element>(own[i], other[i])) ++i;
  if (i == own.size()) return "";
  return fmt::format("is {} in place {}, the source's is {}", shown<Element>(own[i]), i, shown<Element>(other[i]));
}

constexpr const char* kTokens = "tokenizer.ggml.tokens";
constexpr const char* kWords = "tokenizer.ggml.pre";

/// Whether tools may choose the value in their own way.
bool is_tools_own(const std::string& key) {
  static const std::set<std::string> kFree = {"tokenizer.chat_template", "tokenizer.ggml.token_type",
                                              "tokenizer.ggml.scores", kWords};
  return kFree.count(key) != 0 || key.ends_with("_token_id") || key.ends_with("_token");
}

/// Several of llama.cpp's names stand for the same way to cut words. Nothing for a name that is not known here.
std::optional<bool> cut_alike(const gguf::Value& a, const gguf::Value& b) {
  const auto *own = std::get_if<std::string>(&a), *other = std::get_if<std::string>(&b);
  if (own == nullptr || other == nullptr) return std::nullopt;
  try {
    const gguf::CutOfWords first = gguf::cut_of_words(*own), second = gguf::cut_of_words(*other);
    return first.pre_tokenizer == second.pre_tokenizer && first.ignores_merges == second.ignores_merges;
  } catch (const CheckpointError&) {
    return std::nullopt;
  }
}

template <typename Scalar>
std::int64_t length_of(const Scalar&) {
  return -1;
}
template <typename Element>
std::int64_t length_of(const std::vector<Element>& values) {
  return static_cast<std::int64_t>(values.size());
}

}  // namespace

void check_vocabulary(const gguf::Metadata& keys, std::int64_t rows, Findings& findings) {
  const auto* kind = gguf::find_value<std::string>(keys, "tokenizer.ggml.model");
  if (kind != nullptr && (*kind == "none" || *kind == "no_vocab")) return;
  const auto* tokens = gguf::find_value<std::vector<std::string>>(keys, kTokens);
  if (tokens == nullptr)
    return findings.fault("tokenizer", kTokens, "is missing; llama.cpp loads no model without its tokens");
  const auto count = static_cast<std::int64_t>(tokens->size());
  if (count != rows)
    return findings.fault("tokenizer", kTokens, fmt::format("has {} tokens for {} rows of embeddings", count, rows));
  bool sound = true;
  for (const auto& [key, value] : keys) {
    const std::int64_t length = std::visit([](const auto& own) { return length_of(own); }, value);  // -1: it is no list
    const auto* id = std::get_if<std::uint32_t>(&value);
    std::string fault;
    if ((key == "tokenizer.ggml.token_type" || key == "tokenizer.ggml.scores") && length != count)
      fault = fmt::format("has {} values for {} tokens", length, count);
    else if (key.starts_with("tokenizer.ggml.") && key.ends_with("_token_id") && id != nullptr && *id >= count)
      fault = fmt::format("is {}, but there are {} tokens, so that llama.cpp takes another one", *id, count);
    if (fault.empty()) continue;
    const bool is_minor = id != nullptr && key != "tokenizer.ggml.eos_token_id" && key != "tokenizer.ggml.bos_token_id";
    if (is_minor)
      findings.warning("tokenizer", key, fault);
    else
      findings.fault("tokenizer", key, fault);
    sound = false;
  }
  try {
    (void)gguf::tokenizer_files(keys);
  } catch (const CheckpointError& error) {
    if (sound) findings.warning("tokenizer", kTokens, error.what());
  }
}

void compare_keys(const gguf::Metadata& result, const gguf::Metadata& expected, Findings& findings) {
  for (const auto& pair : expected) {
    const std::string& key = pair.first;
    const bool of_model = key == "general.architecture" || !key.starts_with("general.");
    if (!of_model || key.starts_with("split.") || key.starts_with("quantize.") || key.starts_with("layerpress."))
      continue;
    const auto own = std::find_if(result.begin(), result.end(), [&](const auto& other) { return other.first == key; });
    if (own == result.end()) {
      if (key != kTokens)
        findings.warning("config", key, "is missing; the source makes it, and llama.cpp takes a value of its own");
      continue;
    }
    const std::string what =
        std::visit([](const auto& a, const auto& b) { return difference(a, b); }, own->second, pair.second);
    const std::optional<bool> alike = key == kWords ? cut_alike(own->second, pair.second) : std::nullopt;
    if (what.empty() || alike == true) continue;
    if (is_tools_own(key) && alike != false)
      findings.warning("config", key, what);
    else
      findings.fault("config", key, what);
    if (key == "general.architecture") return;  // the others have other names
  }
}

}  // namespace layerpress::verification
