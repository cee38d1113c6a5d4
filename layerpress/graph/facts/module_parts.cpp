#include "layerpress/graph/facts/module_parts.h"

#include <map>

namespace layerpress::graph {
namespace {

/// The child module of `around` (-1: top level) that contains `module`; -1 if `module` is `around`.
ModuleId module_below(const Graph& graph, ModuleId module, ModuleId around) {
  if (module == around) return -1;
  while (graph.modules[module].parent != around) module = graph.modules[module].parent;
  return module;
}

}  // namespace

std::vector<Part> parts_of(const Graph& graph, const std::vector<NodeId>& nodes, ModuleId around) {
  std::vector<Part> parts;
  std::map<ModuleId, std::size_t> place;
  for (const NodeId n : nodes) {
    const ModuleId module = module_below(graph, graph.nodes[n].module, around);
    const auto found = place.find(module);
    if (module >= 0 && found != place.end()) {
      parts[found->second].nodes.push_back(n);
      continue;
    }
    if (module >= 0) place.emplace(module, parts.size());
    parts.push_back({module, {n}});
  }
  return parts;
}

}  // namespace layerpress::graph
