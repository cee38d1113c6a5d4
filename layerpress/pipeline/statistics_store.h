#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "layerpress/compression/modifier.h"
#include "layerpress/dist/division.h"
#include "layerpress/execution/stage_runner.h"

namespace layerpress::pipeline {

/// Statistics of values, kept until the last linear that wants them is compressed.
class StatisticsStore {
 public:
  /// Who needs the sum over ranks.
  static constexpr int kAllRanks = -1;

  StatisticsStore();
  ~StatisticsStore();

  /// The residual stream before a linear writes into it.
  struct Stream {
    at::Tensor compressed, reference;
  };
  /// One batch of a value, and what the original model has in its place (undefined: nobody wants to know, or it is the same).
  struct Input {
    at::Tensor x;
    at::Tensor reference{};
    Stream stream{};  ///< for an output cross matrix
  };
  /// What is summed up beside the Gram matrix, on every rank.
  struct CrossWanted {
    bool square = false;  ///< the cross matrix
    at::Tensor weight{};  ///< or the output cross matrix of the linear that has this weight, in the computing dtype
    kernels::ResidualShares shares{};
    bool any() const { return square || weight.defined(); }
  };

  /// Adds one batch of `value`. Measured as phases "gram" and "cross".
  void add(const execution::RunContext& run, graph::ValueId value, const Input& input, const CrossWanted& cross);
  /// Adds the last batch (undefined: this rank has none) and begins to add all ranks' sums: each finished part of the triangle
  /// is under way while the next one is computed. All ranks call it, for the same values in the same order. Elsewhere than on
  /// `root` the matrices are of no use afterwards. Measured as phases "gram", "cross" and "reduce".
  void add_last_and_merge(const execution::RunContext& run, graph::ValueId value, const Input& input,
                          const CrossWanted& cross, int root = kAllRanks);
  /// Waits for the sums of what add_last_and_merge() was called for. All ranks call it.
  void finish_merging(const execution::RunContext& run);
  bool has(graph::ValueId value) const { return statistics_.count(value) != 0; }
  /// REQUIRES: finish_merging() was called since the value was merged.
  const compression::Statistics& get(graph::ValueId value) const { return statistics_.at(value); }
  void drop(graph::ValueId value) { statistics_.erase(value); }

 private:
  class Merge;
  compression::Statistics& of(const execution::RunContext& run, graph::ValueId value, const CrossWanted& cross);
  void add_and_merge_cross(const execution::RunContext& run, compression::Statistics& statistics, const Input& input,
                           int root);
  std::map<graph::ValueId, compression::Statistics> statistics_;
  std::vector<graph::ValueId> merging_;
  std::unique_ptr<Merge> merge_;
};

/// The rows of a triangle [features, features] that travel together.
std::vector<dist::Slice> triangle_strips(std::int64_t features);

/// The rows of a matrix [rows, features] that travel together, in place.
std::vector<dist::Slice> matrix_strips(std::int64_t rows, std::int64_t features);

/// Bytes that merging a triangle, and a matrix [rows, features] if there are rows, takes beside them.
std::uint64_t merge_workspace_bytes(std::int64_t features, std::int64_t rows, int ranks);

}  // namespace layerpress::pipeline
