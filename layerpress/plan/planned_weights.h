#pragma once

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "layerpress/plan/planned_sizes.h"

namespace layerpress::plan {

/// Memory that weights take for the time of a subgraph: copies in another dtype, compressed and changed ones, and pinned
/// copies for a device. Mapped weights take none.
class PlannedWeights {
 public:
  /// Refers to both.
  PlannedWeights(const PlanRequest& request, const PlannedSizes& sizes);

  /// Onloads a subgraph's weights, while the `next` ones are read.
  void begin(const schedule::SubgraphSchedule& subgraph, const std::vector<std::string>& next, SubgraphPlan& plan);
  /// The most memory for a moment of begin(), besides what stays.
  std::uint64_t reading_bytes() const { return std::max(most_, onloaded_) - onloaded_; }
  /// A parameter is held in memory from now on, because a transform has changed it.
  void change(const std::string& name, SubgraphPlan& plan);
  /// A compressed weight is used from now on.
  void add_compressed(std::int64_t elements, SubgraphPlan& plan);
  /// Releases the subgraph's weights, but for those that later subgraphs read.
  void end(const schedule::SubgraphSchedule& subgraph);

  std::uint64_t onloaded_bytes() const { return onloaded_; }
  /// On the host, beside a device.
  std::uint64_t pinned_bytes() const { return pinned_; }

 private:
  void add(std::uint64_t bytes, SubgraphPlan& plan);
  void onload(const std::string& weight, SubgraphPlan& plan);
  void pin(const std::vector<std::string>& weights, const std::vector<std::string>& next);
  bool runs_before(const schedule::SubgraphSchedule& subgraph, const std::string& weight) const;
  std::set<std::string> replaced_in(const schedule::SubgraphSchedule& subgraph) const;

  const setup::RunSetup& run_;
  const graph::Graph& graph_;
  const PlannedSizes& sizes_;
  std::set<std::string> changed_;  // in this subgraph
  std::uint64_t onloaded_ = 0, kept_ = 0, pinned_ = 0, most_ = 0;
};

}  // namespace layerpress::plan
