#pragma once

#include "layerpress/model/blocks/architecture.h"
#include "layerpress/modifier/pruning/reap.h"
#include "layerpress/output/measurement_log.h"
#include "layerpress/run/compression/calibration.h"
#include "layerpress/run/compression/rank.h"
#include "layerpress/setup/run_setup.h"

namespace layerpress::run {

/// Measures layer by layer what experts contribute on the samples of all ranks, and chooses those that stay. Each layer reads what
/// the layers before it give without the experts that go, so that it runs twice: with all experts, which are measured, and with those
/// that stay. If layers may keep different numbers, all are measured with all experts, because no choice is made before the last one.
/// `smaller`: the traced model with the first experts of each layer only. Writes nothing but figures to `log`, from whose figures it goes on: a layer
/// whose figures are known runs once, with the experts that stay. Collective.
rewrite::KeptExperts measured_choice(Rank& rank, const setup::RunSetup& setup, const modifier::ExpertPruning& pruning,
                                     const model::TracedModel& smaller, const Calibration& calibration,
                                     output::MeasurementLog& log);

}  // namespace layerpress::run
