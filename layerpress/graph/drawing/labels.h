#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "layerpress/graph/folding.h"
#include "layerpress/graph/graph.h"

namespace layerpress::graph {

// Labels of a picture, in the subset of HTML that Graphviz reads.

/// The text with HTML's reserved characters escaped.
std::string escaped(const std::string& text);

/// `name` without the prefix of the enclosing module `around`.
std::string name_inside(const std::string& name, const std::string& around);

/// Kind, name inside the module `around`, and sizes.
std::string node_label(const Graph& graph, const Node& node, const std::string& around);

/// "[tokens, 576]" and the bytes of one row.
std::string value_label(const Graph& graph, ValueId value, std::int64_t element_bytes);

/// "layers.1-29" for "layers.1" and "layers.29"; both names if they differ in another part.
std::string name_range(const std::string& first, const std::string& last);

/// Which blocks are hidden and which blocks they repeat. `names` are the names of all blocks.
std::string fold_label(const Folded& folded, const std::vector<std::string>& names, const std::string& sizes);

}  // namespace layerpress::graph
