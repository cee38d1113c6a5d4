#pragma once

#include <map>
#include <string>
#include <vector>

#include "layerpress/graph/graph.h"
#include "layerpress/importer/exported/exported_graph.h"

namespace layerpress::importer {

/// The modules of an export under the names that the checkpoint has for them.
class ModuleNames {
 public:
  explicit ModuleNames(const ExportedGraph& graph);

  /// The module of the export's list.
  graph::ModuleId module(std::size_t exported);
  /// The module of this stored name; of this class if it is new.
  graph::ModuleId named(const std::string& name, const std::string& class_name);
  /// The stored name of a module of the export.
  std::string stored(const std::string& path) const;
  std::vector<graph::Module> take_modules() { return std::move(modules_); }

 private:
  std::map<std::string, std::string> prefixes_;  // of the export and of the checkpoint
  std::map<std::string, std::string> classes_;   // by stored name
  std::map<std::string, graph::ModuleId> ids_;
  std::vector<graph::Module> modules_;
  const ExportedGraph& graph_;
};

}  // namespace layerpress::importer
