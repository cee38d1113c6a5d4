#pragma once

#include "layerpress/graph/graph.h"

namespace layerpress::graph {

inline bool is_layer(const Module& module) { return module.class_name == "Layer"; }
inline bool is_linear(const Module& module) { return module.class_name == "Linear"; }

}  // namespace layerpress::graph
