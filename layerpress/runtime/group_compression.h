#pragma once

#include <vector>

#include "layerpress/runtime/compression.h"
#include "layerpress/runtime/group_division.h"

namespace layerpress::runtime {

/// The linears of a subgraph that are compressed, grouped by input.
std::vector<graph::LinearGroup> assigned_groups(const graph::Graph& graph, const graph::Subgraph& subgraph,
                                                const Assignments& assignments);

/// Whether any linear of the group wants the input's Gram matrix.
bool wants_gram(const graph::LinearGroup& group, const Assignments& assignments);

/// The linears of a group that one modifier compresses, and how ranks divide them.
struct GroupWork {
  const Modifier* modifier = nullptr;
  std::vector<graph::NodeId> linears;
  GroupDivision division;
};

/// The group's linears by who compresses them, in order. `owner`: the rank that may get all of it, or -1.
std::vector<GroupWork> divide_work(const RunContext& run, const graph::LinearGroup& group,
                                   const Assignments& assignments, int owner);

/// The shape of an assigned linear.
LinearShape shape_of(const graph::Graph& graph, graph::NodeId linear, const Assignments& assignments);

/// Compresses a group (each modifier gets its linears at once, ranks their parts), hands results to the sink, and, when
/// `replace`, lets later nodes compute with the compressed weights. Throws CheckpointError for non-finite weights.
void compress_group(const RunContext& run, const std::vector<GroupWork>& works, const Assignments& assignments,
                    const Statistics* statistics, Onload& parameters, bool replace, ResultSink& sink);

}  // namespace layerpress::runtime
