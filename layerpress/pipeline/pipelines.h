#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "layerpress/execution/stage_runner.h"
#include "layerpress/pipeline/result_sink.h"
#include "layerpress/schedule/schedule.h"

namespace layerpress::pipeline {

/// Runs subgraph after subgraph, with all batches. Each subgraph takes one pass that is cut before each linear group:
/// run up to the group's input and collect statistics, compress the group, continue with the compressed weights. Every
/// linear runs once, with its compressed weights, and sees the error of everything compressed before it. The weights of
/// the next subgraph are read meanwhile. The run's `weights` gives the compressed weights of finished subgraphs.
void run_sequential(const execution::RunContext& run, const std::vector<schedule::SubgraphSchedule>& schedule,
                    const compression::Assignments& assignments, residency::ActivationStore& store, ResultSink& sink);

/// Runs the whole model on the original weights, batch by batch, and collects statistics for all groups. Then
/// compresses them, subgraph by subgraph; `finished` subgraphs (empty: none) are skipped.
void run_basic(const execution::RunContext& run, const std::vector<graph::Subgraph>& subgraphs,
               const compression::Assignments& assignments, const std::vector<bool>& finished, ResultSink& sink);

/// Compresses weights without data, one linear after the other on all threads. Each rank compresses the linears that
/// its sink owns.
void run_datafree(const execution::RunContext& run, const std::vector<graph::Subgraph>& subgraphs,
                  const compression::Assignments& assignments, const std::vector<bool>& finished, ResultSink& sink);

}  // namespace layerpress::pipeline
