#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "layerpress/graph/partition.h"
#include "layerpress/schedule/group_division.h"
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
  bool propagates = true;                               ///< later nodes use the compressed weights
  bool everywhere = false;                              ///< all ranks have the statistics, whichever rank compresses
  const compression::Statistics* statistics = nullptr;  ///< statistics of the input, if any
  std::optional<std::int64_t> routed_tokens;            ///< tokens that the router gave the linears' expert
};

/// Linears that are compressed together, as a plan sees them.
std::vector<compression::LinearShape> shapes_of(const graph::Graph& graph, const std::vector<graph::NodeId>& linears,
                                                const compression::Assignments& assignments);

/// Divides what is compressed in one step among the ranks.
class WorkDivider {
 public:
  struct Options {
    int ranks = 1;
    dist::DivisionRates rates{};
    bool everywhere =
        false;  ///< all ranks get all statistics; otherwise only those that groups of several subgraphs use
  };
  /// Refers to the graph and the assignments.
  WorkDivider(const graph::Graph& graph, const compression::Assignments& assignments, const Options& options);

  /// The linears of groups that are compressed in one step, by group and by modifier, in order.
  std::vector<GroupWork> divide(const std::vector<graph::LinearGroup>& groups) const;

 private:
  /// Whether groups of other subgraphs use the group's statistics, too.
  bool is_shared(const graph::LinearGroup& group) const;
  double statistics_bytes(graph::ValueId value) const;

  const graph::Graph& graph_;
  const compression::Assignments& assignments_;
  Options options_;
  ValueStatistics statistics_;
};

}  // namespace layerpress::schedule
