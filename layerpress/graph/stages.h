#pragma once

#include <cstddef>
#include <map>
#include <vector>

#include "layerpress/graph/partition.h"

namespace layerpress::graph {

/// Nodes to run on every batch before something is done with the values `wanted`.
struct Stage {
  std::vector<ValueId> wanted;  ///< the purpose of the stage, in order of production; empty for the last stage
  std::vector<NodeId> nodes;    ///< in order; includes nodes of earlier stages whose values were not kept
  std::vector<ValueId> inputs;  ///< values read from the store, including those of `wanted` that are already stored
  std::vector<ValueId> keeps;   ///< values produced here that go to the store
};

/// Splits a subgraph into one stage per entry of `wanted` (with all nodes that its values still need) and a last stage
/// with the remaining nodes for `outputs`, the subgraph's live outputs. Nodes that nothing needs are in no stage.
///
/// `keep_after[i]` (empty: all true) says whether values computed up to stage i stay in the store for later stages.
/// Otherwise they are recomputed from values stored before, which takes less memory and more time and gives the same
/// values. Selected tokens and norms' outputs are never kept for later stages of the subgraph, because they are computed
/// from other values as fast as they are read (repeats_cheaply()). Values in `stale_after[i]` (empty: none)
/// are not kept up to stage i, because they change after it. Of an expert's values on all tokens that it
/// is calibrated on, the routed rows are kept: the stage that computes the values takes these rows, if values are kept
/// at all.
std::vector<Stage> split_stages(const Graph& graph, const Subgraph& subgraph,
                                const std::vector<std::vector<ValueId>>& wanted, const std::vector<ValueId>& outputs,
                                const std::vector<bool>& keep_after = {},
                                const std::vector<std::vector<ValueId>>& stale_after = {});

/// Whether a stage computes the operation's output again rather than reading it from the store.
bool repeats_cheaply(const Operation& operation);

/// For every value of a subgraph, the number of levels of linears in `groups` that have to be compressed before it can be
/// computed, including its producer, because it depends on them through values or through weights that other nodes also read.
std::map<ValueId, std::size_t> compression_levels(const Graph& graph, const Subgraph& subgraph,
                                                  const std::vector<LinearGroup>& groups);

}  // namespace layerpress::graph
