#include "layerpress/quant/targets/group_targets.h"

#include <algorithm>
#include <numeric>
#include <tuple>

namespace layerpress::quant {
namespace {

bool is_pattern(const std::string& target) { return target.find("re:") != std::string::npos; }

}  // namespace

GroupTargets::GroupTargets(const std::vector<Group>& groups) {
  for (std::size_t g = 0; g < groups.size(); ++g)
    for (const std::string& target : groups[g].targets) {
      const auto known = std::find_if(candidates_.begin(), candidates_.end(),
                                      [&](const Candidate& candidate) { return candidate.target == target; });
      if (known == candidates_.end())
        candidates_.push_back({target, static_cast<int>(g), TargetList({target}, groups[g].where + ".targets")});
      else
        known->group = static_cast<int>(g);
    }
  as_listed_.resize(candidates_.size());
  std::iota(as_listed_.begin(), as_listed_.end(), 0);
  alphabetical_ = as_listed_;
  std::sort(alphabetical_.begin(), alphabetical_.end(), [&](std::size_t a, std::size_t b) {
    const std::string &first = candidates_[a].target, &second = candidates_[b].target;
    return std::make_tuple(is_pattern(first), first) < std::make_tuple(is_pattern(second), second);
  });
}

int GroupTargets::decide(const std::vector<std::size_t>& order, const ModuleName& module) const {
  int by_class = -1;
  for (const std::size_t c : order) {
    const TargetList::Match how = candidates_[c].list.match(module);
    if (how == TargetList::Match::kRegex && module.needs_own_target) continue;
    if (how == TargetList::Match::kName || how == TargetList::Match::kRegex) return candidates_[c].group;
    if (how == TargetList::Match::kClass && by_class < 0) by_class = candidates_[c].group;
  }
  return by_class;
}

int GroupTargets::group_of(const ModuleName& module) const { return decide(alphabetical_, module); }

int GroupTargets::first_group_of(const ModuleName& module) const { return decide(as_listed_, module); }

}  // namespace layerpress::quant
