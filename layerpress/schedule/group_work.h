#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "layerpress/graph/partition.h"
#include "layerpress/graph/reference_stream.h"
#include "layerpress/schedule/group_division.h"

namespace layerpress::schedule {

/// The linears of a subgraph that are compressed, grouped by input.
std::vector<graph::LinearGroup> assigned_groups(const graph::Graph& graph, const graph::Subgraph& subgraph,
                                                const compression::Assignments& assignments);

/// Whether any linear of the group wants the input's Gram matrix.
bool wants_gram(const graph::LinearGroup& group, const compression::Assignments& assignments);
/// Or what the original model's input adds to it.
bool wants_cross(const graph::LinearGroup& group, const compression::Assignments& assignments);

/// Whether any modifier wants to see the original model's values.
bool wants_reference(const compression::Assignments& assignments);
/// What the original model then computes beside the compressed one; else nothing.
std::optional<graph::ReferenceStream> reference_stream(const graph::Graph& graph,
                                                       const compression::Assignments& assignments);

/// The linears of a group that one modifier compresses, and how ranks divide them.
struct GroupWork {
  graph::ValueId input = -1;
  const compression::Modifier* modifier = nullptr;
  std::vector<graph::NodeId> linears;
  GroupDivision division;
  bool everywhere = false;                              ///< all ranks have the statistics, whichever rank compresses
  const compression::Statistics* statistics = nullptr;  ///< statistics of the input, if any
  std::optional<std::int64_t> routed_tokens;            ///< tokens that the router gave the linears' expert
};

/// Linears that are compressed together, as a plan sees them.
std::vector<compression::LinearShape> shapes_of(const graph::Graph& graph, const std::vector<graph::NodeId>& linears,
                                                const compression::Assignments& assignments);

/// The linears of groups that are compressed in one step, by group and by who compresses them, in order. `everywhere`: for
/// which groups all ranks need the statistics in any case.
std::vector<GroupWork> divide_work(const graph::Graph& graph, const std::vector<graph::LinearGroup>& groups,
                                   const compression::Assignments& assignments, int ranks,
                                   const dist::DivisionRates& rates,
                                   const std::function<bool(const graph::LinearGroup&)>& everywhere);

/// Says of a group whether others, of other subgraphs, use its statistics, too.
std::function<bool(const graph::LinearGroup&)> shares_statistics(const graph::Graph& graph,
                                                                 const compression::Assignments& assignments);

}  // namespace layerpress::schedule
