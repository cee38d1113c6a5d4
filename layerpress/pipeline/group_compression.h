#pragma once

#include <vector>

#include "layerpress/pipeline/divided_compression.h"
#include "layerpress/pipeline/schedule_runner.h"
#include "layerpress/pipeline/shared_values.h"
#include "layerpress/schedule/group_work.h"

namespace layerpress::pipeline {

/// The results that ranks exchange for `works`. Refers to their divisions.
std::vector<ResultExchange::Group> exchanged_groups(const graph::Graph& graph,
                                                    const std::vector<schedule::GroupWork>& works,
                                                    const compression::Assignments& assignments);

/// Shapes of linears that one modifier compresses.
struct TaskShape {
  const compression::Quantizer* modifier = nullptr;
  std::vector<compression::LinearShape> linears;
  bool operator==(const TaskShape&) const = default;
};

/// How many consecutive tasks are compressed together in each turn: equal ones, as many as their modifier accepts.
std::vector<std::size_t> turns_of(const std::vector<TaskShape>& tasks);

/// Compresses groups that do not depend on each other. Each modifier gets the linears of a group together, and every
/// rank compresses its parts of all groups before it waits for other ranks. Passes results to the sink and, with
/// `replace`, lets later nodes use the compressed weights, if the modifier propagates(). Collective. Throws CheckpointError for non-finite weights.
void compress_groups(const execution::RunContext& run, const std::vector<schedule::GroupWork>& works,
                     SharedValues& shared, residency::Onload& parameters, bool replace, ResultSink& sink);

}  // namespace layerpress::pipeline
