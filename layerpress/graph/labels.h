#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "layerpress/graph/folding.h"
#include "layerpress/graph/graph.h"

namespace layerpress::graph {

// Words of a picture, in the subset of HTML that Graphviz reads.

/// The text with what HTML reserves written out.
std::string escaped(const std::string& text);

/// `name` without the module `around` that it is in.
std::string name_inside(const std::string& name, const std::string& around);

/// Kind, name inside the module `around`, sizes.
std::string node_label(const Graph& graph, const Node& node, const std::string& around);

/// "[tokens, 576]" and what one row takes.
std::string value_label(const Graph& graph, ValueId value, std::int64_t element_bytes);

/// "layers.1-29" of "layers.1" and "layers.29"; both names where they differ otherwise.
std::string name_range(const std::string& first, const std::string& last);

/// Which blocks are hidden, and which they are alike. `names`: of all blocks.
std::string fold_label(const Folded& folded, const std::vector<std::string>& names, const std::string& sizes);

}  // namespace layerpress::graph
