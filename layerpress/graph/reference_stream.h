#pragma once

#include <set>
#include <vector>

#include "layerpress/graph/stages.h"

namespace layerpress::graph {

/// What the original model computes beside the compressed one, on the same batches: its values, as far as they differ. A value
/// differs when it depends on a linear that is compressed; the others are computed once and serve both. Values that differ
/// have a second identity, under which they are stored.
class ReferenceStream {
 public:
  /// `compressed`: the linears that have other weights in the compressed model.
  ReferenceStream(const Graph& graph, const std::set<NodeId>& compressed);

  bool differs(ValueId value) const { return differs_.at(static_cast<std::size_t>(value)); }
  /// What the original model's value is stored as: itself when it does not differ.
  ValueId stored_as(ValueId value) const { return differs(value) ? value + count_ : value; }
  /// What has to run in the original model when `stage` runs in the compressed one: what the values that differ need.
  Stage stage(const Stage& stage) const;

  /// The value of the graph that `stored` is one of.
  static ValueId value_of(const Graph& graph, ValueId stored) {
    return stored % static_cast<ValueId>(graph.values.size());
  }

 private:
  const Graph& graph_;
  ValueId count_;
  std::vector<bool> differs_;
};

}  // namespace layerpress::graph
