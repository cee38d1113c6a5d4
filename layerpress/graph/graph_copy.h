#pragma once

#include <vector>

#include "layerpress/graph/graph.h"

namespace layerpress::graph {

/// A copy of a graph that is made node by node, so that nodes can be left out or inserted. Inputs, modules, tables and constants are
/// there from the beginning. The old graph must live as long.
class GraphCopy {
 public:
  explicit GraphCopy(const Graph& old);

  /// Where a value of the old graph is now. REQUIRES: its node was copied, or it was placed.
  ValueId place(ValueId old) const { return places_[static_cast<std::size_t>(old)]; }
  /// Makes `now` stand for a value whose node is left out.
  void stand_for(ValueId old, ValueId now) { places_[static_cast<std::size_t>(old)] = now; }

  /// A node of the old graph with its inputs where they are now.
  Node with_placed_inputs(const Node& old) const;
  /// Appends a node whose inputs are placed, and returns its output's place.
  ValueId add(Node node, Value output);

  /// The copy, after all nodes. Throws as lint() does.
  Graph finish();

 private:
  const Graph& old_;
  Graph copy_;
  std::vector<ValueId> places_;
};

}  // namespace layerpress::graph
