#pragma once

#include "layerpress/compression/assignments.h"

namespace layerpress::setup {

/// Throws RecipeError for statistics that cannot be collected: those that distinguish samples of a value that has other rows
/// than tokens, and those of a value whose channels a transform divides, if they cannot be divided with it.
void check_statistics(const graph::Graph& graph, const compression::Assignments& assignments);

}  // namespace layerpress::setup
