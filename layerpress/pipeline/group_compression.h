#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "layerpress/pipeline/divided_compression.h"
#include "layerpress/pipeline/pipelines.h"
#include "layerpress/schedule/group_work.h"

namespace layerpress::pipeline {

/// What ranks exchange of works. Refers to their divisions.
std::vector<ResultExchange::Group> exchanged_groups(const graph::Graph& graph,
                                                    const std::vector<schedule::GroupWork>& works,
                                                    const compression::Assignments& assignments);

/// Linears that a modifier compresses, as their shapes.
struct TaskShape {
  const compression::Modifier* modifier = nullptr;
  std::vector<compression::LinearShape> linears;
  bool operator==(const TaskShape&) const = default;
};

/// Of tasks in order, how many are compressed at once, turn by turn: neighbours alike, as many as their modifier takes.
std::vector<std::size_t> turns_of(const std::vector<TaskShape>& tasks);

/// Compresses groups that do not depend on each other (each modifier gets its linears at once; every rank does its parts of
/// all of them before it waits for others), hands results to the sink, and, when `replace`, lets later nodes compute with the
/// compressed weights. Collective. Throws CheckpointError for non-finite weights.
void compress_groups(const execution::RunContext& run, const std::vector<schedule::GroupWork>& works,
                     const compression::Assignments& assignments, residency::Onload& parameters, bool replace,
                     ResultSink& sink);

}  // namespace layerpress::pipeline
