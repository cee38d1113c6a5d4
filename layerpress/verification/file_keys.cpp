#include "layerpress/verification/file_keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <type_traits>

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

/// Whether tools may choose the value in their own way.
bool is_tools_own(const std::string& key) {
  static const std::set<std::string> kFree = {"tokenizer.chat_template", "tokenizer.ggml.token_type",
                                              "tokenizer.ggml.scores", "tokenizer.ggml.pre"};
  return kFree.count(key) != 0 || key.ends_with("_token_id") || key.ends_with("_token");
}

}  // namespace

void compare_keys(const gguf::Metadata& result, const gguf::Metadata& expected, Findings& findings) {
  for (const auto& pair : expected) {
    const std::string& key = pair.first;
    const bool of_model = key == "general.architecture" || !key.starts_with("general.");
    if (!of_model || key.starts_with("split.") || key.starts_with("quantize.") || key.starts_with("layerpress."))
      continue;
    const auto own = std::find_if(result.begin(), result.end(), [&](const auto& other) { return other.first == key; });
    if (own == result.end()) {
      findings.warning("config", key, "is missing; the source makes it, and llama.cpp takes a value of its own");
      continue;
    }
    const std::string what =
        std::visit([](const auto& a, const auto& b) { return difference(a, b); }, own->second, pair.second);
    if (what.empty()) continue;
    if (is_tools_own(key))
      findings.warning("config", key, what);
    else
      findings.fault("config", key, what);
    if (key == "general.architecture") return;  // the others have other names
  }
}

}  // namespace layerpress::verification
