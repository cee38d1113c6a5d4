#pragma once

#include "layerpress/importer/regions.h"

namespace layerpress::importer {

/// The most memory that a region's values take at once, from the shapes that the export wrote down.
graph::TokenBytes region_workspace(const ExportedGraph& graph, const Region& region);

}  // namespace layerpress::importer
