#pragma once

#include <optional>

#include "layerpress/run/calibration.h"
#include "layerpress/run/rank.h"
#include "layerpress/setup/run_setup.h"

namespace layerpress::run {

/// The setup's recipe; if it removes experts and does not say which, with the choice: that of the run that --resume continues, or what the
/// experts contribute on the calibration data. Writes the modifier's report. `calibration`: the data, if it
/// was loaded. Throws RecipeError, before any data is read, for a model whose experts cannot be removed. Collective.
recipe::Recipe choose_experts(Rank& rank, const setup::RunSetup& setup, std::optional<Calibration>& calibration);

/// The same for a plan, which needs only to know how many experts stay: the first ones.
recipe::Recipe assume_experts(const setup::RunSetup& setup);

}  // namespace layerpress::run
