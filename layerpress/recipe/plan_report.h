#pragma once

#include "layerpress/recipe/machine_rates.h"
#include "layerpress/recipe/run_plan.h"

namespace layerpress::recipe {

/// The plan's numbers without times, as they go into a run's summary.
Json plan_numbers(const RunSetup& setup, const RunPlan& plan);

/// The whole plan, as plan_oneshot() returns it.
Json plan_report(const RunSetup& setup, const RunPlan& plan, const MachineRates& rates);

}  // namespace layerpress::recipe
