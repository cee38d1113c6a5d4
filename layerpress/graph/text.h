#pragma once

#include <string>

#include "layerpress/graph/graph.h"

namespace layerpress::graph {

/// Prints a graph, one line per rope table, module, input other than the token ids, and node, in order:
///   rope {"attention_scaling":1.0,...}
///   module "model.layers.0" LlamaDecoderLayer in 1
///   input %1 [588 patches]
///   %7 [576] = linear(%6) {"weight":"model.layers.0.self_attn.q_proj.weight",...} in 4
///   output %93
/// For users, tests and debugging.
std::string to_text(const Graph& graph);

}  // namespace layerpress::graph
