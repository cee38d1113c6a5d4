#pragma once

#include <optional>

#include "layerpress/run/calibration.h"
#include "layerpress/run/rank.h"
#include "layerpress/setup/run_setup.h"

namespace layerpress::run {

/// If the recipe removes experts and does not say which, puts the choice into recipe and modifiers: that of the run that --resume
/// continues, or what the experts contribute on the calibration data. Writes the modifier's report. `calibration`: the data, if it
/// was loaded. Throws RecipeError, before any data is read, for a model whose experts cannot be removed. Collective.
void choose_experts(Rank& rank, setup::RunSetup& setup, std::optional<Calibration>& calibration);

/// The same for a plan, which needs only to know how many experts stay: the first ones.
void assume_experts(setup::RunSetup& setup);

}  // namespace layerpress::run
