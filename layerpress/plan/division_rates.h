#pragma once

#include <functional>

#include "layerpress/dist/division.h"
#include "layerpress/dist/group.h"
#include "layerpress/setup/run_setup.h"

namespace layerpress::plan {

/// Measures this rank's speed and that of the connection between ranks. Collective.
using MeasureDivisionRates = std::function<dist::DivisionRates(const setup::RunSetup& setup, dist::Group& group)>;

/// Compresses a small group with each of the run's modifiers, and times all-reduces of tensors on the device. About a
/// second.
dist::DivisionRates measured_division_rates(const setup::RunSetup& setup, dist::Group& group);

/// The rates that ranks divide the work by: those of the slowest rank, so that all ranks divide alike. On CPUs they are
/// constants for the number of threads, on other devices they are measured, because devices and their connections differ
/// a hundredfold. The codes do not depend on the division. Collective.
dist::DivisionRates agreed_division_rates(const setup::RunSetup& setup, dist::Group& group,
                                          const MeasureDivisionRates& measure = measured_division_rates);

}  // namespace layerpress::plan
