#pragma once

#include <vector>

#include "layerpress/graph/stages.h"
#include "layerpress/runtime/onload.h"

namespace layerpress::runtime {

/// A node of a stage, or a gated activation with the two linears whose outputs only it reads: computed at once, the bits are
/// the same and the outputs of the linears are never in memory.
struct FusedNode {
  graph::NodeId node = 0;
  graph::NodeId gate = kNone, up = kNone;  ///< linears that are computed with it
  std::vector<graph::ValueId> inputs;      ///< without those that the batch gives

  static constexpr graph::NodeId kNone = -1;
  bool fuses() const { return gate != kNone; }
};

/// The nodes of a stage in their order, fused where `placement` has a kernel for it.
std::vector<FusedNode> fused_nodes(const graph::Graph& graph, const graph::Stage& stage, const Placement& placement);

}  // namespace layerpress::runtime
