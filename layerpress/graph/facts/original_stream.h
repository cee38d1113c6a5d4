#pragma once

#include <set>
#include <string>
#include <vector>

#include "layerpress/graph/stages.h"

namespace layerpress::graph {

/// The values of the original model, computed beside the compressed one on the same batches, where they differ. A value
/// differs if it depends on a compressed linear or is rounded, which the original model's are not; all other values are
/// computed once and serve both models. Values that differ have a second id, under which they are stored.
class OriginalStream {
 public:
  /// `changed`: names of the weights that differ in the compressed model.
  OriginalStream(const Graph& graph, const std::set<std::string>& changed);

  bool differs(ValueId value) const { return differs_.at(static_cast<std::size_t>(value)); }
  /// The id under which the original model's value is stored: the value itself if it does not differ.
  ValueId stored_as(ValueId value) const { return differs(value) ? value + count_ : value; }
  /// A value that is wanted of the original model with `input`, from which the compressed model computes it in a later stage.
  struct Ahead {
    ValueId input = -1, value = -1;
  };
  /// The stage to run in the original model when `stage` runs in the compressed one: the nodes for the values that
  /// differ, and for those that are wanted ahead. It reads values in `stored` instead of computing them.
  Stage stage(const Stage& stage, const std::vector<Ahead>& ahead = {}, const std::set<ValueId>& stored = {}) const;

  /// The graph's value for the id `stored`.
  static ValueId value_of(const Graph& graph, ValueId stored) {
    return stored % static_cast<ValueId>(graph.values.size());
  }

 private:
  const Graph& graph_;
  ValueId count_;
  std::vector<bool> differs_;
};

}  // namespace layerpress::graph
