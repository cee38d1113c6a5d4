#pragma once

#include <string>
#include <vector>

#include "layerpress/quant/targets/matching.h"

namespace layerpress::quant {

/// Finds the group of a module, also where targets of several groups overlap. A target that several groups list belongs
/// to the last of them.
class GroupTargets {
 public:
  struct Group {
    std::vector<std::string> targets;
    std::string where;  ///< for messages
  };

  /// Throws RecipeError for a pattern that does not compile.
  explicit GroupTargets(const std::vector<Group>& groups);

  /// The rule of LLM Compressor and compressed-tensors: the module's exact name, then patterns in alphabetical order,
  /// then class names in alphabetical order, whichever groups they are in. The group's index, or -1.
  int group_of(const ModuleName& module) const;

  /// The rule of vLLM: names and patterns in the order of the groups, then class names in that order.
  int first_group_of(const ModuleName& module) const;

 private:
  struct Candidate {
    std::string target;
    int group = -1;
    TargetList list;
  };
  int decide(const std::vector<std::size_t>& order, const ModuleName& module) const;
  std::vector<Candidate> candidates_;
  std::vector<std::size_t> alphabetical_, as_listed_;  // orders of candidates_
};

}  // namespace layerpress::quant
