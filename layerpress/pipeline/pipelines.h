#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "layerpress/execution/stage_runner.h"
#include "layerpress/pipeline/result_sink.h"
#include "layerpress/schedule/schedule.h"

namespace layerpress::pipeline {

/// Subgraph after subgraph, all batches through each. Inside a subgraph one pass, cut before each linear group: run up to
/// the group's input and collect statistics, compress the group, go on with the compressed weights. Every linear runs
/// once, with its compressed weights, and sees the error of what was compressed before it. The weights of the next
/// subgraph are read while one computes. `weights` of the run gives the compressed weights of finished subgraphs.
void run_sequential(const execution::RunContext& run, const std::vector<schedule::SubgraphSchedule>& schedule,
                    const compression::Assignments& assignments, residency::ActivationStore& store, ResultSink& sink);

/// The whole model per batch on the original weights, statistics for all groups at once, then compression, subgraph by
/// subgraph; those that are `finished` (empty: none) are left out.
void run_basic(const execution::RunContext& run, const std::vector<graph::Subgraph>& subgraphs,
               const compression::Assignments& assignments, const std::vector<bool>& finished, ResultSink& sink);

/// Weights only, without data: linears one after the other, kernels use all threads. Each rank does those that the sink owns.
void run_datafree(const execution::RunContext& run, const std::vector<graph::Subgraph>& subgraphs,
                  const compression::Assignments& assignments, const std::vector<bool>& finished, ResultSink& sink);

}  // namespace layerpress::pipeline
