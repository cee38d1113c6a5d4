#pragma once

#include <vector>

#include "layerpress/plan/run_plan.h"
#include "layerpress/run/precision/disturbed_models.h"

namespace layerpress::run {

/// What measure_divergences takes for samples of these shapes: the memory of each subgraph, `head` for the predictions,
/// the batch, how much of the values between stages stays in memory, and the smallest budget. The schedule is empty.
plan::RunPlan plan_divergences(const Disturbances& disturbances, const std::vector<plan::SampleShape>& samples);

}  // namespace layerpress::run
