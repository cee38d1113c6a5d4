#pragma once

#include <vector>

#include "layerpress/compression/assignments.h"
#include "layerpress/graph/partition.h"
#include "layerpress/setup/assignment/assignment.h"

namespace layerpress::setup {

/// Adds the recipe's transforms. Throws RecipeError for a transform after the quantizer of a linear that it changes, and for
/// combinations that do not work together.
void plan_transforms(const graph::Graph& graph, const Modifiers& modifiers, compression::Assignments& assignments);

/// Joins the subgraphs that read a transform's parameters, and the subgraphs between them.
std::vector<graph::Subgraph> joined_for_transforms(const graph::Graph& graph, std::vector<graph::Subgraph> subgraphs,
                                                   const compression::Assignments& assignments);

}  // namespace layerpress::setup
