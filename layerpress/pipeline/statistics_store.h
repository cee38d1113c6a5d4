#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "layerpress/compression/statistics/statistic.h"
#include "layerpress/dist/division.h"
#include "layerpress/execution/stage_runner.h"

namespace layerpress::pipeline {

/// The contribution of a piece of a batch to one statistic of a value. A rank without samples has no values here, but takes part
/// in collective operations.
struct Contribution {
  static constexpr int kAllRanks = -1;
  compression::StatisticPtr statistic;
  compression::StatisticInput input{};
  int root = kAllRanks;  ///< the rank that needs the merged statistics
};

/// The samples of the rows that count in a value: of tokens, or of what belongs to samples with images.
compression::SampleRows sample_rows(const execution::RunContext& run, const execution::Batch& batch, graph::Rows rows,
                                    bool all_tokens = false);

/// Statistics of values, kept until the last linear that wants them is compressed.
class StatisticsStore {
 public:
  StatisticsStore();
  ~StatisticsStore();

  /// Adds one piece of `value` to all of its statistics. Measured as their phases.
  void add(const execution::RunContext& run, graph::ValueId value, const std::vector<Contribution>& contributions);
  /// Adds the last piece and begins to merge all ranks' figures. Finished rows are sent while the others are computed. All ranks
  /// call it, for the same values in the same order. Only on a contribution's root are its figures valid afterwards. Measured as
  /// the statistics' phases and "reduce".
  void add_last_and_merge(const execution::RunContext& run, graph::ValueId value,
                          const std::vector<Contribution>& contributions);
  /// Waits for the merges that add_last_and_merge() has begun. All ranks call it.
  void finish_merging(const execution::RunContext& run);
  bool has(graph::ValueId value) const { return statistics_.count(value) != 0; }
  /// REQUIRES: finish_merging() was called since the value was merged.
  const compression::Statistics& get(graph::ValueId value) const { return statistics_.at(value); }
  /// Changes the statistics to those of the value with channel c divided by scale[c], fp32 [features].
  void divide_channels(graph::ValueId value, const at::Tensor& scale);
  /// What the value's channels were divided by so far, which the original model's are not; undefined: they were not.
  at::Tensor scale(graph::ValueId value) const;
  /// When a subgraph is done: none of its values is computed again.
  void forget_scales() { scales_.clear(); }
  void drop(graph::ValueId value) { statistics_.erase(value), kinds_.erase(value); }

 private:
  class Merge;
  compression::Statistics& of(const execution::RunContext& run, graph::ValueId value,
                              const std::vector<Contribution>& contributions);
  void add_and_merge(const execution::RunContext& run, const Contribution& contribution, at::Tensor& figures);
  std::map<graph::ValueId, compression::Statistics> statistics_;
  std::map<graph::ValueId, std::vector<compression::StatisticPtr>> kinds_;
  std::map<graph::ValueId, at::Tensor> scales_;
  std::vector<graph::ValueId> merging_;
  std::unique_ptr<Merge> merge_;
};

/// The rows of a statistic's figures that travel together.
std::vector<dist::Slice> strips_of(const compression::Statistic& statistic, std::int64_t features);

/// The additional memory for merging these statistics of one value, in bytes.
std::uint64_t merge_workspace_bytes(const std::vector<compression::StatisticPtr>& statistics, std::int64_t features,
                                    int ranks);

}  // namespace layerpress::pipeline
