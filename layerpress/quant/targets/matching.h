#pragma once

#include <memory>
#include <string>
#include <vector>

namespace layerpress::quant {

/// A module, as targets and ignore lists match it.
struct ModuleName {
  std::string name;                           ///< full dotted name, "model.layers.0.self_attn.q_proj"
  std::vector<std::string> classes;           ///< class name and base classes, {"Linear"}
  std::vector<std::string> other_names = {};  ///< further names of the module
  /// Patterns among the targets of groups do not mean it, but its name or its class does.
  bool needs_own_target = false;
};

/// A compiled list of targets: exact dotted names, class names, and `re:` patterns that match from the start of the
/// name like Python's re.match (PCRE2, with a limit against patterns that backtrack endlessly).
class TargetList {
 public:
  /// Throws RecipeError naming `where` for a pattern that does not compile.
  TargetList(const std::vector<std::string>& patterns, const std::string& where);
  ~TargetList();
  TargetList(TargetList&&) noexcept;
  TargetList& operator=(TargetList&&) noexcept;

  /// How a module matches: exact name before regex before class name; kNone if it does not match.
  enum class Match { kNone, kClass, kRegex, kName };
  Match match(const ModuleName& module) const;
  bool matches(const ModuleName& module) const { return match(module) != Match::kNone; }
  /// Patterns that have not matched any module passed to match() so far; for warnings.
  std::vector<std::string> unmatched() const;

 private:
  struct Pattern;
  std::vector<std::unique_ptr<Pattern>> patterns_;
};

}  // namespace layerpress::quant
