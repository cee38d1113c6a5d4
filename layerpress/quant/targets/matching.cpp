#define PCRE2_CODE_UNIT_WIDTH 8
#include "layerpress/quant/targets/matching.h"

#include <pcre2.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <utility>

#include "layerpress/base/error.h"

namespace layerpress::quant {

template <auto kFree>
struct PcreDeleter {
  template <typename T>
  void operator()(T* pointer) const {
    kFree(pointer);
  }
};
using PatternCode = std::unique_ptr<pcre2_code, PcreDeleter<pcre2_code_free>>;

namespace {

constexpr std::size_t kLongestPattern = 10'000;
constexpr std::uint32_t kMatchLimit = 1'000'000;  // steps of backtracking; a sensible pattern needs a few thousand
constexpr std::uint32_t kHeapLimitKib = 16 * 1024;

using CompileContext = std::unique_ptr<pcre2_compile_context, PcreDeleter<pcre2_compile_context_free>>;
using MatchContext = std::unique_ptr<pcre2_match_context, PcreDeleter<pcre2_match_context_free>>;
using MatchData = std::unique_ptr<pcre2_match_data, PcreDeleter<pcre2_match_data_free>>;

PCRE2_SPTR bytes(const std::string& text) { return reinterpret_cast<PCRE2_SPTR>(text.data()); }

std::string message_of(int code) {
  std::array<PCRE2_UCHAR, 256> buffer{};
  pcre2_get_error_message(code, buffer.data(), buffer.size());
  return reinterpret_cast<const char*>(buffer.data());
}

PatternCode compile(const std::string& expression, const std::string& pattern, const std::string& where) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  const CompileContext context(pcre2_compile_context_create(nullptr));
  pcre2_set_max_pattern_length(context.get(), kLongestPattern);
  PatternCode code(pcre2_compile(bytes(expression), expression.size(),
                                 PCRE2_ANCHORED | PCRE2_NEVER_UTF | PCRE2_NEVER_UCP, &error, &offset, context.get()));
  if (!code)
    throw RecipeError("[quant.match] {}: pattern '{}' is not a valid regular expression: {} at character {}", where,
                      pattern, message_of(error), offset + 1);
  return code;
}

bool is_class(const ModuleName& module, const std::string& target) {
  return std::any_of(module.classes.begin(), module.classes.end(), [&](const std::string& name) {
    return name == target || (name == "LinearBase" && target == "Linear");
  });
}

}  // namespace

struct TargetList::Pattern {
  std::string text;   // as the user wrote it
  std::string where;  // the owner of its list
  PatternCode code;   // null for a plain name
  mutable std::atomic<bool> matched{false};

  Match match(const ModuleName& module) const {
    Match how = match_name(module.name);
    for (const std::string& other : module.other_names) how = std::max(how, match_name(other));
    if (how == Match::kNone && !code && is_class(module, text)) how = Match::kClass;
    if (how != Match::kNone) matched.store(true, std::memory_order_relaxed);
    return how;
  }

  Match match_name(const std::string& name) const {
    if (code) return search(name) ? Match::kRegex : Match::kNone;
    return text == name ? Match::kName : Match::kNone;
  }

  bool search(const std::string& name) const {
    const MatchContext context(pcre2_match_context_create(nullptr));
    pcre2_set_match_limit(context.get(), kMatchLimit);
    pcre2_set_heap_limit(context.get(), kHeapLimitKib);
    const MatchData data(pcre2_match_data_create(1, nullptr));
    const int result = pcre2_match(code.get(), bytes(name), name.size(), 0, 0, data.get(), context.get());
    if (result >= 0) return true;
    if (result == PCRE2_ERROR_NOMATCH) return false;
    throw RecipeError("[quant.match] {}: pattern '{}' gave up on module '{}': {}; write a simpler pattern", where, text,
                      name, message_of(result));
  }
};

TargetList::TargetList(const std::vector<std::string>& patterns, const std::string& where) {
  for (const std::string& text : patterns) {
    auto pattern = std::make_unique<Pattern>();
    pattern->text = text;
    pattern->where = where;
    if (text.starts_with("re:")) pattern->code = compile(text.substr(3), text, where);
    patterns_.push_back(std::move(pattern));
  }
}

TargetList::~TargetList() = default;
TargetList::TargetList(TargetList&&) noexcept = default;
TargetList& TargetList::operator=(TargetList&&) noexcept = default;

TargetList::Match TargetList::match(const ModuleName& module) const {
  // All patterns are tried even after a match, so that unmatched() is right about each of them.
  Match best = Match::kNone;
  for (const auto& pattern : patterns_) best = std::max(best, pattern->match(module));
  return best;
}

std::vector<std::string> TargetList::unmatched() const {
  std::vector<std::string> texts;
  for (const auto& pattern : patterns_)
    if (!pattern->matched.load(std::memory_order_relaxed)) texts.push_back(pattern->text);
  return texts;
}

}  // namespace layerpress::quant
