#include "layerpress/graph/renaming.h"

#include <set>
#include <type_traits>
#include <variant>

namespace layerpress::graph {

std::string renamed(const std::string& name, const Renaming& renaming) {
  for (const auto& [prefix, replacement] : renaming) {
    if (!name.starts_with(prefix)) continue;
    const std::string rest = name.substr(prefix.size());
    if (rest.empty() || rest.front() == '.') return replacement + rest;
  }
  return name;
}

void rename(Graph& graph, const Renaming& renaming) {
  for (Module& module : graph.modules) module.name = renamed(module.name, renaming);
  for (Node& node : graph.nodes) {
    std::set<std::string> weights;  // needed because other attributes are strings, too
    for (const WeightUse& use : weights_of(node.operation)) weights.insert(use.name);
    std::visit(
        [&](auto& operation) {
          using Kind = std::decay_t<decltype(operation)>;
          Kind::visit(operation, [&](const char*, auto& field) {
            if constexpr (std::is_same_v<std::decay_t<decltype(field)>, std::string>)
              if (weights.count(field) != 0) field = renamed(field, renaming);
            if constexpr (std::is_same_v<std::decay_t<decltype(field)>, std::vector<std::string>>)
              for (std::string& name : field) name = renamed(name, renaming);
          });
        },
        node.operation);
  }
}

}  // namespace layerpress::graph
