#pragma once

#include <string>
#include <utility>
#include <vector>

#include "layerpress/graph/graph.h"

namespace layerpress::graph {

/// Pairs of a prefix (whole parts of dotted names) and its replacement.
using Renaming = std::vector<std::pair<std::string, std::string>>;

/// `name` with the first matching prefix replaced.
std::string renamed(const std::string& name, const Renaming& renaming);

/// Renames all modules and the weights that operations read.
void rename(Graph& graph, const Renaming& renaming);

}  // namespace layerpress::graph
