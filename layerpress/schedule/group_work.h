#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "layerpress/graph/partition.h"
#include "layerpress/schedule/group_division.h"
#include "layerpress/schedule/schedule.h"
#include "layerpress/schedule/value_statistics.h"

namespace layerpress::schedule {

/// The linears of a subgraph that are compressed, grouped by input.
std::vector<graph::LinearGroup> assigned_groups(const graph::Graph& graph, const graph::Subgraph& subgraph,
                                                const compression::Assignments& assignments);

/// Whether any linear of the group wants statistics of the input.
bool wants_statistics(const graph::LinearGroup& group, const compression::Assignments& assignments);

/// The linears of a group that one modifier compresses in one way, and how ranks divide them.
struct GroupWork {
  graph::ValueId input = -1;
  const compression::Quantizer* modifier = nullptr;
  std::vector<graph::NodeId> linears;
  GroupDivision division;
  bool propagates = true;  ///< later nodes use the compressed weights
  /// Statistics of the input that are merged only on the rank that compresses the linears, if one rank does; all ranks
  /// have the others.
  std::vector<compression::StatisticPtr> owned_statistics{};
  const compression::Statistics* statistics = nullptr;  ///< statistics of the input, if any
  std::optional<std::int64_t> routed_tokens{};          ///< tokens that the router gave the linears' expert
};

/// Linears that are compressed together, as a plan sees them.
std::vector<compression::LinearShape> shapes_of(const graph::Graph& graph, const std::vector<graph::NodeId>& linears,
                                                const compression::Assignments& assignments);

/// Divides what is compressed in one step among the ranks.
class WorkDivider {
 public:
  /// Refers to the graph and the assignments.
  WorkDivider(const graph::Graph& graph, const compression::Assignments& assignments, int ranks,
              const dist::DivisionRates& rates);

  /// The linears of groups that are compressed in one step, by group and by modifier, in order.
  std::vector<GroupWork> divide(Sharing sharing, const std::vector<graph::LinearGroup>& groups) const;

 private:
  /// The work on one group, not yet divided.
  std::vector<GroupWork> works_of(Sharing sharing, const graph::LinearGroup& group) const;
  /// Whether groups of other subgraphs use the group's statistics, too.
  bool is_shared(const graph::LinearGroup& group) const;
  double bytes_to_send(const GroupWork& work) const;

  const graph::Graph& graph_;
  const compression::Assignments& assignments_;
  int ranks_;
  dist::DivisionRates rates_;
  ValueStatistics statistics_;
};

}  // namespace layerpress::schedule
