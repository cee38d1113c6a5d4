#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "layerpress/dist/division.h"
#include "layerpress/runtime/modifier.h"
#include "layerpress/runtime/stage_runner.h"

namespace layerpress::runtime {

/// Statistics of values, kept until the last linear that wants them is compressed.
class StatisticsStore {
 public:
  /// Who needs the sum over ranks.
  static constexpr int kAllRanks = -1;

  /// Adds one batch of `value`'s tensor. Measured as phase "gram".
  void add(const RunContext& run, graph::ValueId value, const at::Tensor& x);
  /// Adds the last batch (undefined: this rank has none) and all ranks' sums: each finished part of the triangle is under way
  /// while the next one is computed. All ranks call it, for the same values in the same order. Elsewhere than on `root`
  /// the matrix is of no use afterwards. Measured as phases "gram" and "reduce".
  void add_last_and_merge(const RunContext& run, graph::ValueId value, const at::Tensor& x, int root = kAllRanks);
  bool has(graph::ValueId value) const { return statistics_.count(value) != 0; }
  const Statistics& get(graph::ValueId value) const { return statistics_.at(value); }
  void drop(graph::ValueId value) { statistics_.erase(value); }

 private:
  Statistics& of(const RunContext& run, graph::ValueId value);
  std::map<graph::ValueId, Statistics> statistics_;
};

/// The rows of a triangle [features, features] that travel together.
std::vector<dist::Slice> triangle_strips(std::int64_t features);

/// Bytes that merging a triangle takes beside it.
std::uint64_t merge_workspace_bytes(std::int64_t features);

}  // namespace layerpress::runtime
