#pragma once

#include <string>
#include <vector>

#include "layerpress/base/json.h"
#include "layerpress/compression/modifier.h"
#include "layerpress/graph/facts/scale_absorbers.h"
#include "layerpress/quant/targets/matching.h"

namespace layerpress::modifier {

/// An entry of a transform's `mappings`: the linears to balance, and the layer whose output is divided instead.
struct ScaleMapping {
  std::string where;
  quant::TargetList balance, smooth;
};

/// Entries of the form [[balance layers], smooth layer], and {smooth_layer: ..., balance_layers: [...]} with an optional
/// activation_hook_target, which has no effect: the value that the balance layers read is known. Throws RecipeError.
std::vector<ScaleMapping> read_scale_mappings(const Json& mappings, const std::string& where);
/// Whether an entry has that key. REQUIRES: read_scale_mappings has read them.
bool names_hook_target(const Json& mappings);

/// Throws RecipeError if the smooth layer, or all balance layers, match no module of the graph.
void require_modules(const graph::Graph& graph, const ScaleMapping& mapping);

/// The entries that have matched nothing so far; their lists are the mappings.
std::vector<compression::Modifier::ListEntry> unmatched_in(const std::vector<ScaleMapping>& mappings);

/// The module that a node belongs to, as targets match it.
quant::ModuleName module_of(const graph::Graph& graph, graph::NodeId n);

}  // namespace layerpress::modifier
