#pragma once

#include <vector>

#include "layerpress/graph/stages.h"
#include "layerpress/residency/onload.h"

namespace layerpress::execution {

/// A node of a stage, or one with nodes before it whose outputs only it reads, computed at once: the bits are the same and
/// those outputs are never in memory. They are the two linears of a gated activation, and such an activation of which only an
/// expert's routed rows are taken, which is then computed on these rows alone.
struct FusedNode {
  graph::NodeId node = 0;
  graph::NodeId gate = kNone, up = kNone;  ///< linears that are computed with it
  graph::NodeId activation = kNone;        ///< of them; `node`, where no rows are taken of it
  std::vector<graph::ValueId> inputs;      ///< without those that the batch gives

  static constexpr graph::NodeId kNone = -1;
  bool fuses() const { return gate != kNone; }
};

/// The nodes of a stage in their order, fused where `placement` has a kernel for it.
std::vector<FusedNode> fused_nodes(const graph::Graph& graph, const graph::Stage& stage,
                                   const residency::Placement& placement);

}  // namespace layerpress::execution
