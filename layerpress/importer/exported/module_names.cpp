#include "layerpress/importer/exported/module_names.h"

#include <set>

#include "layerpress/base/text.h"

namespace layerpress::importer {
namespace {

/// The name of the enclosing module; "" for one at the top.
std::string above(const std::string& name) { return name.find('.') == std::string::npos ? "" : parent_name(name); }

}  // namespace

ModuleNames::ModuleNames(const ExportedGraph& graph) : graph_(graph) {
  std::set<std::string> contradicted;
  for (const auto& [id, parameter] : graph.parameters) {
    if (!parameter.is_stored() || !parameter.tied.empty()) continue;
    std::string own = parameter.name, stored = parameter.sources[0].name;
    while (!own.empty() && !stored.empty() && last_part(own) == last_part(stored)) {
      own = above(own), stored = above(stored);
      if (!prefixes_.emplace(own, stored).second && prefixes_[own] != stored) contradicted.insert(own);
    }
  }
  for (const auto& [id, parameter] : graph.parameters) {
    const std::string& stored = parameter.sources[0].name;
    for (std::string own = above(parameter.name); !own.empty(); own = above(own))
      if (const auto found = prefixes_.find(own);
          found != prefixes_.end() && stored.starts_with(own + ".") && !stored.starts_with(found->second + "."))
        contradicted.insert(own);
  }
  // A parameter that moved to another module says nothing about the modules that the two have in common.
  for (const std::string& prefix : contradicted) prefixes_.erase(prefix);
  for (const auto& [path, class_name] : graph.modules)
    if (!class_name.empty()) classes_.emplace(stored(path), class_name);
}

std::string ModuleNames::stored(const std::string& path) const {
  std::string prefix = path, rest;
  while (true) {
    if (const auto found = prefixes_.find(prefix); found != prefixes_.end() && (!prefix.empty() || !rest.empty())) {
      if (rest.empty() || found->second.empty()) return found->second + rest;
      return found->second + "." + rest;
    }
    if (prefix.empty()) return path;
    rest = rest.empty() ? last_part(prefix) : last_part(prefix) + "." + rest;
    prefix = above(prefix);
  }
}

graph::ModuleId ModuleNames::module(std::size_t exported) {
  const auto& [path, class_name] = graph_.modules[exported];
  return named(stored(path), class_name);
}

graph::ModuleId ModuleNames::named(const std::string& name, const std::string& class_name) {
  if (const auto found = ids_.find(name); found != ids_.end()) return found->second;
  graph::ModuleId parent = -1;
  if (!name.empty()) {
    const std::string outer = above(name);
    const auto known = classes_.find(outer);
    parent = named(outer, known == classes_.end() ? (outer.empty() ? graph_.class_name : "Module") : known->second);
  }
  const auto id = static_cast<graph::ModuleId>(modules_.size());
  modules_.push_back({name, class_name.empty() ? "Module" : class_name, parent});
  ids_.emplace(name, id);
  return id;
}

}  // namespace layerpress::importer
