#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "layerpress/base/json.h"

namespace layerpress {

struct InspectOptions {
  std::string model;
  std::vector<std::string> sequential_targets;
  bool graph = false;

  template <typename Self, typename Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("sequential-targets", self.sequential_targets, "modules to cut the model at (default: its decoder layers)");
    field("graph", self.graph, "print the traced graph, node by node, instead");
  }
};

/// Describes a model as the pipelines see it: architecture, parameters, bytes, and each subgraph with its linear groups.
/// {"model", "architecture", "parameters", "bytes", "quantization", "subgraphs": [{"name", "nodes", "parameters",
/// "bytes", "linear_groups": [{"modules", "in_features", "out_features"}]}]}. With `graph`: {"graph": text}.
Json inspect(const InspectOptions& options);

}  // namespace layerpress
