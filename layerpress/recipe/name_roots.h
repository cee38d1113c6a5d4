#pragma once

#include <set>
#include <string>
#include <vector>

namespace layerpress::recipe {

/// Names below one place of the tree of dotted names.
struct NameRoot {
  std::string root;
  std::vector<std::string> names;
};

/// Groups `names` by the shortest dotted beginning that none of `others` has: "mtp" for "mtp.layers.0.fc" if no other name
/// begins with "mtp.". In the order in which the roots first occur. A name that is among the others is its own root.
std::vector<NameRoot> name_roots(const std::vector<std::string>& names, const std::set<std::string>& others);

/// Entries for an ignore list that match all of `modules` and none of `others`, as few and as short as that allows: a root's
/// pattern ("re:^mtp.*"), one pattern for roots that differ in numbers only ("re:^model\.layers\.\d+\.extra$"), or a name.
/// Engines may know a part beside the language model without the "model." before it, so that its pattern matches both.
std::vector<std::string> ignore_entries(const std::vector<std::string>& modules, const std::set<std::string>& others);

}  // namespace layerpress::recipe
