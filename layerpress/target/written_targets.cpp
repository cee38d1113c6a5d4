#include "layerpress/target/written_targets.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "layerpress/quant/targets/group_targets.h"

namespace layerpress::target {
namespace {

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

/// Whether both readers find every module's group.
bool is_understood(const Layout& layout, const GroupedModules& grouped) {
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
  for (std::size_t m = 0; m < grouped.modules.size(); ++m)
    if (grouped.groups[m] < 0) config.ignore.push_back(grouped.modules[m].name);
  const Layout layout = shortest_layout(schemes, grouped);
  for (std::size_t place = 0; place < layout.order.size(); ++place) {
    QuantizationScheme scheme = schemes[layout.order[place]];
    scheme.targets = layout.targets[layout.order[place]];
    config.groups.emplace_back(group_name(place, schemes.size()), std::move(scheme));
  }
  return config;
}

}  // namespace layerpress::target
