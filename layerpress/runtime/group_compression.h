#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "layerpress/runtime/compression.h"
#include "layerpress/runtime/divided_compression.h"
#include "layerpress/runtime/group_division.h"

namespace layerpress::runtime {

/// The linears of a subgraph that are compressed, grouped by input.
std::vector<graph::LinearGroup> assigned_groups(const graph::Graph& graph, const graph::Subgraph& subgraph,
                                                const Assignments& assignments);

/// Whether any linear of the group wants the input's Gram matrix.
bool wants_gram(const graph::LinearGroup& group, const Assignments& assignments);
/// Or what the original model's input adds to it.
bool wants_cross(const graph::LinearGroup& group, const Assignments& assignments);

/// The linears of a group that one modifier compresses, and how ranks divide them.
struct GroupWork {
  graph::ValueId input = -1;
  const Modifier* modifier = nullptr;
  std::vector<graph::NodeId> linears;
  GroupDivision division;
  bool everywhere = false;                    ///< all ranks have the statistics, whoever compresses
  const Statistics* statistics = nullptr;     ///< of the input, if there are any
  std::optional<std::int64_t> routed_tokens;  ///< that the router gave the expert to which the linears belong
};

/// The linears of groups that are compressed in one step, by group and by who compresses them, in order. `everywhere`: for
/// which groups all ranks need the statistics in any case.
std::vector<GroupWork> divide_work(const graph::Graph& graph, const std::vector<graph::LinearGroup>& groups,
                                   const Assignments& assignments, int ranks, const DivisionRates& rates,
                                   const std::function<bool(const graph::LinearGroup&)>& everywhere);

/// Says of a group whether others, of other subgraphs, use its statistics, too.
std::function<bool(const graph::LinearGroup&)> shares_statistics(const graph::Graph& graph,
                                                                 const Assignments& assignments);

/// What ranks exchange of works. Refers to their divisions.
std::vector<ResultExchange::Group> exchanged_groups(const graph::Graph& graph, const std::vector<GroupWork>& works,
                                                    const Assignments& assignments);

/// Linears that a modifier compresses, as their shapes.
struct TaskShape {
  const Modifier* modifier = nullptr;
  std::vector<LinearShape> linears;
  bool operator==(const TaskShape&) const = default;
};

/// Of tasks in order, how many are compressed at once, turn by turn: neighbours alike, as many as their modifier takes.
std::vector<std::size_t> turns_of(const std::vector<TaskShape>& tasks);

/// Compresses groups that do not depend on each other (each modifier gets its linears at once; every rank does its parts of
/// all of them before it waits for others), hands results to the sink, and, when `replace`, lets later nodes compute with the
/// compressed weights. Collective. Throws CheckpointError for non-finite weights.
void compress_groups(const RunContext& run, const std::vector<GroupWork>& works, const Assignments& assignments,
                     Onload& parameters, bool replace, ResultSink& sink);

}  // namespace layerpress::runtime
