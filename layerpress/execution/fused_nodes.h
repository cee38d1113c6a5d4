#pragma once

#include <vector>

#include "layerpress/graph/stages.h"
#include "layerpress/residency/onload.h"

namespace layerpress::execution {

/// A node of a stage, possibly computed together with nodes before it whose outputs only it reads. The bits are the
/// same, and these outputs are never stored. Fused are: the two linears of a gated activation, and a gated activation
/// of which only an expert's routed rows are taken; it is then computed for these rows only.
struct FusedNode {
  graph::NodeId node = 0;
  graph::NodeId gate = kNone, up = kNone;  ///< linears computed with it
  graph::NodeId activation = kNone;        ///< their activation; equals `node` unless rows are taken of it
  std::vector<graph::ValueId> inputs;      ///< without inputs of the graph

  static constexpr graph::NodeId kNone = -1;
  bool fuses() const { return gate != kNone; }
};

/// The nodes of a stage in order, fused if `placement` has a kernel for it.
std::vector<FusedNode> fused_nodes(const graph::Graph& graph, const graph::Stage& stage,
                                   const residency::Placement& placement);

}  // namespace layerpress::execution
