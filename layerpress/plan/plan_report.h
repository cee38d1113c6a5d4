#pragma once

#include "layerpress/plan/machine_rates.h"
#include "layerpress/plan/run_plan.h"

namespace layerpress::plan {

/// The plan's numbers without times, for a run's summary.
Json plan_numbers(const setup::RunSetup& setup, const RunPlan& plan);

/// The whole plan, as returned by plan_oneshot().
Json plan_report(const setup::RunSetup& setup, const RunPlan& plan, const MachineRates& rates);

}  // namespace layerpress::plan
