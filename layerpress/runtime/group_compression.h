#pragma once

#include <map>
#include <vector>

#include "layerpress/runtime/compression.h"

namespace layerpress::runtime {

/// Statistics of values, kept until the last linear that wants them is compressed.
class StatisticsStore {
 public:
  /// Adds one batch of `value`'s tensor. Measured as phase "gram".
  void add(const RunContext& run, graph::ValueId value, const at::Tensor& x);
  bool has(graph::ValueId value) const { return statistics_.count(value) != 0; }
  const Statistics& get(graph::ValueId value) const { return statistics_.at(value); }
  void drop(graph::ValueId value) { statistics_.erase(value); }

 private:
  std::map<graph::ValueId, Statistics> statistics_;
};

/// The linears of a subgraph that are compressed, grouped by input.
std::vector<graph::LinearGroup> assigned_groups(const graph::Graph& graph, const graph::Subgraph& subgraph,
                                                const Assignments& assignments);

/// Whether any linear of the group wants the input's Gram matrix.
bool wants_gram(const graph::LinearGroup& group, const Assignments& assignments);

/// Compresses the group (each modifier gets its linears at once), hands results to the sink, and, when `parameters` is
/// given, lets later nodes compute with the compressed weights. Throws CheckpointError for non-finite weights.
void compress_group(const RunContext& run, const graph::LinearGroup& group, const Assignments& assignments,
                    const Statistics* statistics, Onload& parameters, bool replace, ResultSink& sink);

}  // namespace layerpress::runtime
