#pragma once

#include <string>
#include <vector>

#include "layerpress/compression/assignments.h"
#include "layerpress/execution/stage_runner.h"
#include "layerpress/pipeline/result_sink.h"
#include "layerpress/pipeline/statistics_store.h"

namespace layerpress::pipeline {

/// Applies some of the assignments' transforms, in order. It changes parameters, and the statistics of the values between them.
/// REQUIRES: the transforms' statistics have been collected, and none of these values is stored. Measured as "transform".
void apply_transforms(const execution::RunContext& run, const std::vector<std::size_t>& transforms,
                      const compression::Assignments& assignments, residency::Onload& parameters,
                      StatisticsStore& statistics);

/// Passes parameters that transforms have changed to the sink.
void store_changed(const execution::RunContext& run, const std::vector<std::string>& names,
                   const residency::Onload& parameters, ResultSink& sink);

}  // namespace layerpress::pipeline
