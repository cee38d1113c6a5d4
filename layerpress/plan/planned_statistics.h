#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "layerpress/plan/planned_sizes.h"

namespace layerpress::plan {

/// The values that a step collects statistics of, and what that takes.
struct PlannedCollection {
  std::set<graph::ValueId> own, original;  ///< the last sources, by the model that computes them
  std::uint64_t workspace = 0;             ///< for collecting and merging
};

/// Statistics of values, as StatisticsStore would hold them.
class PlannedStatistics {
 public:
  /// Refers to both.
  PlannedStatistics(const PlanRequest& request, const PlannedSizes& sizes);

  /// Reserves the figures of a step's statistics and counts their arithmetic.
  PlannedCollection collect(const schedule::Step& step, SubgraphPlan& plan);
  /// Bytes of sources that are held until all sources of a value's statistics have been computed, unless they are stored.
  std::uint64_t held_bytes(const schedule::Step& step, const PlannedCollection& collection, std::size_t batch) const;
  void drop(graph::ValueId value);
  std::uint64_t bytes() const { return bytes_; }

 private:
  /// Returns the workspace.
  std::uint64_t hold(graph::ValueId value, const std::vector<compression::StatisticPtr>& statistics,
                     SubgraphPlan& plan);

  const setup::RunSetup& run_;
  const PlannedSizes& sizes_;
  std::map<graph::ValueId, std::uint64_t> held_;  // bytes
  std::uint64_t bytes_ = 0;
};

}  // namespace layerpress::plan
