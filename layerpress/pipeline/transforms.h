#pragma once

#include <string>
#include <vector>

#include "layerpress/compression/assignments.h"
#include "layerpress/execution/stage_runner.h"
#include "layerpress/pipeline/sinks/result_sink.h"
#include "layerpress/pipeline/statistics_store.h"
#include "layerpress/pipeline/trials.h"

namespace layerpress::pipeline {

/// Applies the transforms of a step, in order, after their trials. It changes parameters, and the statistics of the values between them.
/// REQUIRES: the transforms' statistics have been collected, and none of these values is stored. Measured as "transform".
void apply_transforms(const execution::RunContext& run, const schedule::Step& step,
                      const compression::Assignments& assignments, residency::Onload& parameters,
                      StatisticsStore& statistics, const TrialRunner& trials);

/// Passes parameters that transforms have changed to the sink.
void store_changed(const execution::RunContext& run, const std::vector<std::string>& names,
                   const residency::Onload& parameters, ResultSink& sink);

}  // namespace layerpress::pipeline
