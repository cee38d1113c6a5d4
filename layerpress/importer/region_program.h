#pragma once

#include <map>
#include <vector>

#include "layerpress/importer/regions.h"

namespace layerpress::importer {

/// A region as a node, and the values that it reads, in the order of the program's inputs.
struct RegionNode {
  graph::Aten operation;
  std::vector<std::int64_t> inputs;
};

/// `constants` maps values of the export to indices in the graph.
RegionNode region_node(const ExportedGraph& graph, const Layouts& layouts, const Regions& regions, const Region& region,
                       const std::map<std::int64_t, std::int64_t>& constants);

}  // namespace layerpress::importer
