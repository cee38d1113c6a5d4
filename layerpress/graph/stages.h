#pragma once

#include <vector>

#include "layerpress/graph/partition.h"

namespace layerpress::graph {

/// Nodes to run on every batch before something happens to a value.
struct Stage {
  ValueId wanted = -1;          ///< the linear group's input that the stage is run for; -1 for the last stage
  std::vector<NodeId> nodes;    ///< in order; nodes of earlier stages again where their values were not kept
  std::vector<ValueId> inputs;  ///< values read from the store (`wanted` too, when it is there already)
  std::vector<ValueId> keeps;   ///< values produced here that go to the store
};

/// Splits a subgraph into one stage per group (everything that the group's input still needs) and a last stage with
/// what remains for `outputs`, the subgraph's live outputs; nodes that nothing needs are in no stage.
///
/// `keep_after[g]` (empty: all true) says whether values computed up to group g stay in the store for later stages, or are
/// computed again from what was stored before: less memory, more time, the same values.
std::vector<Stage> split_stages(const Graph& graph, const Subgraph& subgraph, const std::vector<LinearGroup>& groups,
                                const std::vector<ValueId>& outputs, const std::vector<bool>& keep_after = {});

}  // namespace layerpress::graph
