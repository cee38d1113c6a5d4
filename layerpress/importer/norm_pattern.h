#pragma once

#include <optional>

#include "layerpress/importer/lowering.h"

namespace layerpress::importer {

/// The root-mean-square norm that ends in `node`: weight * (x * rsqrt(mean(x²) + epsilon)), rounded as the export says.
std::optional<Lowered> match_rms_norm(const ExportedGraph& graph, const Layouts& layouts, const ExportedNode& node);

}  // namespace layerpress::importer
