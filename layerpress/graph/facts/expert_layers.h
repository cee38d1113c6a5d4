#pragma once

#include <string>
#include <vector>

#include "layerpress/graph/graph.h"

namespace layerpress::graph {

/// The experts of one layer, and what chooses among them.
struct ExpertLayer {
  /// An expert whose linears are nodes.
  struct Member {
    NodeId node = -1;                  ///< Expert, which adds its contribution
    std::vector<std::string> weights;  ///< all that it reads, in an order that all experts of the layer share
  };
  std::string name;               ///< of the module around router and experts, "model.layers.0.mlp"
  std::string list;               ///< of the module that holds the experts, "model.layers.0.mlp.experts"
  ValueId input = -1;             ///< that the experts read
  ValueId logits = -1;            ///< that experts are chosen by
  ValueId routing = -1;           ///< the experts' weights
  NodeId first = 0;               ///< the first node behind the experts of the layer before
  std::vector<Member> experts{};  ///< in the order of their numbers

  /// Weights that the routing is made with, from the input on.
  std::vector<WeightUse> router_weights(const Graph& graph) const;
};

/// All layers with experts, in the order of the graph.
std::vector<ExpertLayer> expert_layers(const Graph& graph);

}  // namespace layerpress::graph
