#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "layerpress/graph/facts/original_stream.h"
#include "layerpress/schedule/group_work.h"
#include "layerpress/schedule/schedule.h"

namespace layerpress::schedule {

/// What of a model has to run so that what is to be compressed can be.
class Demand {
 public:
  /// Refers to `request`.
  explicit Demand(const ScheduleRequest& request);

  /// Linears of subgraph `s` that are to be compressed; none of a finished one.
  const std::vector<graph::LinearGroup>& groups(std::size_t s) const { return work_[s].groups; }
  /// Transforms of the subgraph's parameters, as indices in Assignments::transforms; none of a finished one.
  const std::vector<std::size_t>& transforms(std::size_t s) const { return work_[s].transforms; }
  /// The subgraph's stored parameters, as indices in Assignments::stored; none of a finished one.
  const std::vector<std::size_t>& stored(std::size_t s) const { return stored_[s]; }
  /// The values that are collected for them alone.
  const std::vector<graph::ValueId>& observed(std::size_t s) const { return work_[s].observed; }
  /// The subgraph without the nodes that nothing needs.
  const graph::Subgraph& subgraph(std::size_t s) const { return running_[s]; }
  std::size_t size() const { return running_.size(); }
  /// Values that are stored already, of the compressed model.
  const std::vector<graph::ValueId>& available() const { return available_; }

  /// Whether a subgraph after `s` reads the value, or wants its statistics.
  bool is_wanted_after(graph::ValueId value, std::size_t s) const { return last_use_[value] > static_cast<int>(s); }
  /// Values of this subgraph that later ones need.
  std::vector<graph::ValueId> outputs(std::size_t s) const;

  const ValueStatistics& statistics() const { return statistics_; }
  /// What the original model runs beside the compressed one; none: it does not run.
  const std::optional<graph::OriginalStream>& original() const { return original_; }

 private:
  std::vector<graph::ValueId> computed_in(std::size_t s) const;
  void find_last_uses();

  const ScheduleRequest& request_;
  const graph::Graph& graph_;
  std::optional<graph::OriginalStream> original_ = original_stream(graph_, request_.assignments);
  ValueStatistics statistics_{graph_, request_.assignments};
  std::vector<graph::ValueId> available_;
  std::vector<Step> work_;  // groups, transforms and observed values of each subgraph
  std::vector<std::vector<std::size_t>> stored_;
  std::vector<bool> needed_;  // nodes on which a wanted value depends
  std::vector<graph::Subgraph> running_;
  std::vector<int> last_use_;  // of each value, the last subgraph
};

}  // namespace layerpress::schedule
