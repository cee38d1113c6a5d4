#pragma once

#include <vector>

#include "layerpress/graph/partition.h"

namespace layerpress::graph {

/// Nodes to run on every batch before something happens to values.
struct Stage {
  std::vector<ValueId> wanted;  ///< what the stage is run for, in the order in which it comes; empty for the last stage
  std::vector<NodeId> nodes;    ///< in order; nodes of earlier stages again where their values were not kept
  std::vector<ValueId> inputs;  ///< values read from the store (of `wanted` too, what is there already)
  std::vector<ValueId> keeps;   ///< values produced here that go to the store
};

/// Splits a subgraph into one stage per entry of `wanted` (everything that its values still need) and a last stage with what
/// remains for `outputs`, the subgraph's live outputs; nodes that nothing needs are in no stage.
///
/// `keep_after[i]` (empty: all true) says whether values computed up to stage i stay in the store for later stages, or are
/// computed again from what was stored before: less memory, more time, the same values. Selected tokens are never kept: they
/// are copies of rows. Of what an expert gives on all that it is calibrated on, the routed rows are kept: they are taken in the
/// stage that computes it, if values are kept at all.
std::vector<Stage> split_stages(const Graph& graph, const Subgraph& subgraph,
                                const std::vector<std::vector<ValueId>>& wanted, const std::vector<ValueId>& outputs,
                                const std::vector<bool>& keep_after = {});

/// Groups in the order in which they can be compressed: those of one level do not depend on each other's linears, only on
/// linears of earlier levels, be it through values or through weights that other nodes read, too. Within a level they stay in order.
std::vector<std::vector<LinearGroup>> by_level(const Graph& graph, const Subgraph& subgraph,
                                               const std::vector<LinearGroup>& groups);

}  // namespace layerpress::graph
