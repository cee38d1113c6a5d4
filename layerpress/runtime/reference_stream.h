#pragma once

#include <vector>

#include "layerpress/graph/stages.h"
#include "layerpress/runtime/modifier.h"

namespace layerpress::runtime {

/// What the original model computes beside the compressed one, on the same batches: its values, as far as they differ. A value
/// differs when it depends on a linear that is compressed; the others are computed once and serve both. Values that differ
/// have a second identity, under which they are stored.
class ReferenceStream {
 public:
  ReferenceStream(const graph::Graph& graph, const Assignments& assignments);

  bool differs(graph::ValueId value) const { return differs_.at(static_cast<std::size_t>(value)); }
  /// What the original model's value is stored as: itself when it does not differ.
  graph::ValueId stored_as(graph::ValueId value) const { return differs(value) ? value + count_ : value; }
  /// What has to run in the original model when `stage` runs in the compressed one: what the values that differ need.
  graph::Stage stage(const graph::Stage& stage) const;

  /// The value of the graph that `stored` is one of.
  static graph::ValueId value_of(const graph::Graph& graph, graph::ValueId stored) {
    return stored % static_cast<graph::ValueId>(graph.values.size());
  }

 private:
  const graph::Graph& graph_;
  graph::ValueId count_;
  std::vector<bool> differs_;
};

/// Whether any modifier wants to see the original model's values.
bool wants_reference(const Assignments& assignments);

}  // namespace layerpress::runtime
