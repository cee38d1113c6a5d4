#pragma once

#include "layerpress/execution/stage_runner.h"
#include "layerpress/pipeline/sinks/result_sink.h"
#include "layerpress/schedule/schedule.h"

namespace layerpress::pipeline {

/// Executes a schedule of any pipeline and passes the results to the sink. The weights of the next subgraph are read
/// meanwhile. The run's `weights` gives the compressed weights of finished subgraphs.
void run_schedule(const execution::RunContext& run, const schedule::Schedule& schedule,
                  const compression::Assignments& assignments, residency::ActivationStore& store, ResultSink& sink);

}  // namespace layerpress::pipeline
