#include "layerpress/target/written_targets.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <string_view>
#include <utility>

#include "layerpress/base/text.h"
#include "layerpress/quant/targets/group_targets.h"

namespace layerpress::target {
namespace {

constexpr std::string_view kExperts = ".experts.";
constexpr const char* kExpertPattern = "re:.*[.]experts[.].*";

using quant::QuantizationScheme;
using Targets = std::vector<std::string>;

Targets names_of(const GroupedModules& grouped, int group) {
  Targets names;
  for (std::size_t m = 0; m < grouped.modules.size(); ++m)
    if (grouped.groups[m] == group) names.push_back(grouped.modules[m].name);
  return names;
}

/// A choice of targets for each group, and the order of the groups.
struct Layout {
  std::vector<Targets> targets;
  std::vector<std::size_t> order;
};

/// JSON objects are sorted by key, so numbers have as many digits as the last.
std::string group_name(std::size_t place, std::size_t groups) {
  return fmt::format("group_{:0{}}", place, static_cast<int>(fmt::formatted_size("{}", groups - 1)));
}

/// The text as vLLM (0.32) renames modules of gpt-oss, and targets, which it does not understand.
std::string renamed(std::string text) {
  constexpr std::string_view kFrom = ".self_attn.", kTo = ".attn.";
  if (const auto at = text.find(kFrom); at != std::string::npos) text.replace(at, kFrom.size(), kTo);
  return text;
}

/// Whether readers find every module's group, by the names that are given.
bool finds_groups(const Layout& layout, const GroupedModules& grouped) {
  std::vector<quant::GroupTargets::Group> groups;
  for (const std::size_t g : layout.order) groups.push_back({layout.targets[g], "targets"});
  const quant::GroupTargets readers(groups);
  const auto found = [&](int place) {
    return place < 0 ? -1 : static_cast<int>(layout.order[static_cast<std::size_t>(place)]);
  };
  for (std::size_t m = 0; m < grouped.modules.size(); ++m) {
    if (grouped.groups[m] < 0) continue;  // readers check ignored modules first
    if (found(readers.group_of(grouped.modules[m])) != grouped.groups[m]) return false;
    if (found(readers.first_group_of(grouped.modules[m])) != grouped.groups[m]) return false;
  }
  return true;
}

/// Whether both readers find every module's group.
bool is_understood(const Layout& layout, const GroupedModules& grouped) {
  if (!finds_groups(layout, grouped)) return false;
  if (!grouped.gpt_oss) return true;
  Layout other = layout;
  for (Targets& list : other.targets) std::transform(list.begin(), list.end(), list.begin(), renamed);
  GroupedModules modules = grouped;
  for (quant::ModuleName& module : modules.modules) module.name = renamed(module.name);
  return finds_groups(other, modules);
}

/// The modules without a group. vLLM renames the entries of gpt-oss's down projections, so that it would find only the others among them.
Targets ignored(const GroupedModules& grouped) {
  const auto is_expert = [](const std::string& name) { return name.find(kExperts) != std::string::npos; };
  Targets names;
  bool all_experts = grouped.gpt_oss;
  for (std::size_t m = 0; m < grouped.modules.size(); ++m) {
    if (grouped.groups[m] < 0)
      names.push_back(grouped.modules[m].name);
    else
      all_experts = all_experts && !is_expert(grouped.modules[m].name);
  }
  if (all_experts && std::erase_if(names, is_expert) > 0) names.emplace_back(kExpertPattern);
  return names;
}

/// The order in which compressed-tensors matches: names, patterns in alphabetical order, classes.
std::vector<std::size_t> order_of_precedence(const std::vector<Targets>& targets) {
  const auto rank = [&](std::size_t g) {
    const std::string& first = *std::min_element(targets[g].begin(), targets[g].end());
    const bool pattern = first.starts_with("re:"), name = first.find('.') != std::string::npos;
    return std::make_pair(pattern ? 1 : name ? 0 : 2, first);
  };
  std::vector<std::size_t> order(targets.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return rank(a) < rank(b); });
  return order;
}

/// The group of all experts' linears; -1 if there are none, or in several groups.
int group_of_experts(const GroupedModules& grouped) {
  int group = -1;
  for (std::size_t m = 0; m < grouped.modules.size(); ++m) {
    if (grouped.groups[m] < 0 || grouped.modules[m].name.find(kExperts) == std::string::npos) continue;
    if (group >= 0 && group != grouped.groups[m]) return -1;
    group = grouped.groups[m];
  }
  return group;
}

/// The group by which transformers reads stacked experts: the first with a pattern that has the word, the first with a name or a class,
/// or the first.
std::size_t read_for_experts(const Layout& layout) {
  const auto find = [&](auto&& accepts) {
    return std::find_if(layout.order.begin(), layout.order.end(), [&](std::size_t g) {
      return std::any_of(layout.targets[g].begin(), layout.targets[g].end(), accepts);
    });
  };
  const auto is_pattern = [](const std::string& target) { return target.starts_with("re:"); };
  auto found = find(
      [&](const std::string& target) { return is_pattern(target) && target.find("experts") != std::string::npos; });
  if (found == layout.order.end()) found = find([&](const std::string& target) { return !is_pattern(target); });
  return found == layout.order.end() ? layout.order.front() : *found;
}

/// Adds a pattern for the experts, or puts their group first, where transformers would take another group for them.
Layout with_experts_found(const Layout& layout, const GroupedModules& grouped) {
  const int experts = group_of_experts(grouped);
  if (experts < 0) return layout;
  const auto own = static_cast<std::size_t>(experts);
  Layout named = layout, first = layout;
  named.targets[own].emplace_back(kExpertPattern);
  std::stable_partition(first.order.begin(), first.order.end(), [&](std::size_t g) { return g == own; });
  Layout both = named;
  both.order = first.order;
  for (const Layout& choice : {layout, first, named, both})
    if (read_for_experts(choice) == own && is_understood(choice, grouped)) return choice;
  return layout;
}

/// The group of a module, or -1.
int group_of(const GroupedModules& grouped, const std::string& name) {
  for (std::size_t m = 0; m < grouped.modules.size(); ++m)
    if (grouped.modules[m].name == name) return grouped.groups[m];
  return -1;
}

/// vLLM's class for heads is no linear by its name, so that the head needs a target that means its name.
Layout with_head_found(const Layout& layout, const GroupedModules& grouped) {
  const int group = grouped.head.empty() ? -1 : group_of(grouped, grouped.head.front());
  if (group < 0) return layout;
  const auto own = static_cast<std::size_t>(group);
  const auto is_meant = [&](const Targets& targets) {
    return std::all_of(grouped.head.begin(), grouped.head.end(), [&](const std::string& name) {
      return quant::TargetList(targets, "targets").matches({name, {}});
    });
  };
  if (is_meant(layout.targets[own])) return layout;
  Layout pattern = layout, named = layout;
  pattern.targets[own].push_back("re:.*" + last_part(grouped.head.front()) + "$");
  named.targets[own].insert(named.targets[own].end(), grouped.head.begin(), grouped.head.end());
  for (const Layout& choice : {pattern, named})
    if (is_meant(choice.targets[own]) && is_understood(choice, grouped)) return choice;
  return layout;
}

/// vLLM builds many embeddings without their names, so that only their class means them.
Layout with_embeddings_found(const Layout& layout, const GroupedModules& grouped) {
  int group = -1;
  for (std::size_t m = 0; m < grouped.modules.size(); ++m) {
    if (grouped.modules[m].classes.front() != "Embedding") continue;
    if (grouped.groups[m] < 0 || (group >= 0 && group != grouped.groups[m])) return layout;
    group = grouped.groups[m];
  }
  if (group < 0 || !grouped.is_whole) return layout;
  Layout by_class = layout;
  Targets& own = by_class.targets[static_cast<std::size_t>(group)];
  if (std::find(own.begin(), own.end(), "Embedding") != own.end()) return layout;
  own.emplace_back("Embedding");
  return is_understood(by_class, grouped) ? by_class : layout;
}

/// The classes of a group of attentions, if these are all that the classes mean; otherwise nothing.
Targets classes_of(const GroupedModules& grouped, int group) {
  std::set<std::string> own, others;
  for (std::size_t m = 0; m < grouped.modules.size(); ++m)
    (grouped.groups[m] == group ? own : others).insert(grouped.modules[m].classes.front());
  const auto is_other = [&](const std::string& name) { return others.count(name) != 0; };
  return std::any_of(own.begin(), own.end(), is_other) ? Targets() : Targets(own.begin(), own.end());
}

/// Groups without weights, by classes where that means the same.
Layout with_attentions_by_class(const Layout& layout, const std::vector<QuantizationScheme>& schemes,
                                const GroupedModules& grouped) {
  Layout by_class = layout;
  for (std::size_t g = 0; g < schemes.size(); ++g)
    if (const Targets classes = schemes[g].weights ? Targets() : classes_of(grouped, static_cast<int>(g));
        !classes.empty())
      by_class.targets[g] = classes;
  return is_understood(by_class, grouped) ? by_class : layout;
}

std::size_t length(const std::vector<Targets>& targets) {
  std::size_t count = 0;
  for (const Targets& list : targets) count += list.size();
  return count;
}

/// The understood layout with the fewest targets.
Layout shortest_layout(const std::vector<QuantizationScheme>& schemes, const GroupedModules& grouped) {
  constexpr std::size_t kMostChoices =
      6;  // beyond this number, groups are listed by name at once, because the choices double with each
  const std::size_t count = schemes.size();
  Layout named;
  for (std::size_t g = 0; g < count; ++g) named.targets.push_back(names_of(grouped, static_cast<int>(g)));
  named.order.resize(count);
  std::iota(named.order.begin(), named.order.end(), 0);
  const unsigned all = (1u << std::min(count, kMostChoices)) - 1;
  Layout best = named;
  for (unsigned by_name = 0; by_name < all; ++by_name) {
    Layout layout = named;
    for (std::size_t g = 0; g < count; ++g)
      if (count > kMostChoices ? by_name == 0 : (by_name >> g & 1) == 0) layout.targets[g] = schemes[g].targets;
    if (by_name > 0 && length(layout.targets) >= length(best.targets)) continue;
    for (const std::vector<std::size_t>& order : {named.order, order_of_precedence(layout.targets)}) {
      layout.order = order;
      if (!is_understood(layout, grouped)) continue;
      if (by_name == 0) return layout;  // the recipe's own targets
      best = layout;
      break;
    }
    if (count > kMostChoices) break;
  }
  return best;
}

}  // namespace

quant::QuantizationConfig with_targets(const std::vector<QuantizationScheme>& schemes, const GroupedModules& grouped) {
  quant::QuantizationConfig config;
  config.ignore = ignored(grouped);
  Layout layout = with_experts_found(shortest_layout(schemes, grouped), grouped);
  layout = with_embeddings_found(with_head_found(layout, grouped), grouped);
  layout = with_attentions_by_class(layout, schemes, grouped);
  std::vector<QuantizationScheme> written;
  for (const std::size_t g : layout.order) {
    const Targets& targets = layout.targets[g];
    const bool apart = !schemes[g].weights && targets == classes_of(grouped, static_cast<int>(g));
    const std::size_t together = apart ? 1 : targets.size();
    for (std::size_t first = 0; first < targets.size(); first += together) {
      written.push_back(schemes[g]);
      written.back().targets.assign(targets.begin() + static_cast<std::ptrdiff_t>(first),
                                    targets.begin() + static_cast<std::ptrdiff_t>(first + together));
    }
  }
  for (std::size_t place = 0; place < written.size(); ++place)
    config.groups.emplace_back(group_name(place, written.size()), std::move(written[place]));
  return config;
}

}  // namespace layerpress::target
