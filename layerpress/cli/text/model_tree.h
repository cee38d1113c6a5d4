#pragma once

#include <string>

#include "layerpress/base/json.h"

namespace layerpress::cli {

/// The subgraphs of `inspect`'s result and their linear groups as a tree of at most 100 columns. Subgraphs in a row that differ only
/// in their number stand once, and so do modules.
std::string model_tree(const Json& subgraphs);

}  // namespace layerpress::cli
