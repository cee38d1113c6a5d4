#pragma once

#include <vector>

#include "layerpress/graph/partition.h"
#include "layerpress/setup/assignment/assignment.h"

namespace layerpress::setup {

/// Adds to the assignments the attentions that modifiers quantize, and all parameters of values that are stored. NVFP4's inputs
/// have one global scale for all linears that engines fuse, and one for the same projection of all experts of a layer. Throws
/// RecipeError for an attention whose keys and values cannot be quantized, naming it and the reason.
void plan_stored_parameters(const OpenedModel& model, const Modifiers& modifiers,
                            compression::Assignments& assignments);

/// Where the recipe quantizes no attention: those that the source has quantized stay so, unless a transform or a rewrite changes values on
/// which their scales were measured.
void keep_stored_attentions(const OpenedModel& model, const target::Target& target,
                            compression::Assignments& assignments);

/// Throws RecipeError if modules with common parameters lie in several subgraphs.
void check_common_parameters(const graph::Graph& graph, const std::vector<graph::Subgraph>& subgraphs,
                             const compression::Assignments& assignments);

}  // namespace layerpress::setup
