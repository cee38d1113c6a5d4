#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "layerpress/output/measurement_log.h"
#include "layerpress/run/compression/calibration.h"
#include "layerpress/run/compression/rank.h"
#include "layerpress/run/decisions/measuring_run.h"
#include "layerpress/setup/run_setup.h"

namespace layerpress::run {

/// A choice that a modifier leaves to measurements on the calibration data.
struct Decision {
  const char* argument;  ///< of the modifier, which holds the choice once it is made: "kept_experts"
  const char* chosen;    ///< for messages: "the experts that stay"
  bool (*is_open)(const recipe::ModifierEntry& entry);
  /// The argument's value, the same on every rank. Says what it measures and what that takes. `changed`: the model as the recipe changes it, whatever is chosen. `log`: for what a measurement
  /// goes on from. Collective.
  OrderedJson (*measure)(Rank& rank, const setup::RunSetup& setup, const setup::OpenedModel& changed,
                         const recipe::ModifierEntry& entry, const Calibration& calibration,
                         output::MeasurementLog& log);
  /// A value for a plan; null: the plan does not depend on it.
  OrderedJson (*assume)(const setup::RunSetup& setup, const recipe::ModifierEntry& entry) = nullptr;
  /// Plans measure() on this rank's data; null: that is not planned. Throws MemoryError if the budgets are too small.
  MeasuringStep (*plan)(const setup::RunSetup& setup, const std::vector<plan::SampleShape>& samples,
                        std::int64_t batch_tokens) = nullptr;
  /// Refuses what could not be chosen or written, before any data is read. Throws layerpress::Error. Null: nothing.
  void (*check)(const Rank& rank, const recipe::Recipe& recipe) = nullptr;
  /// Writes what the modifier asks for beside the result. Null: nothing.
  void (*finish)(const Rank& rank, const recipe::Recipe& recipe) = nullptr;
};

/// The setup's recipe, with all that it leaves to measurements: as the run that --resume continues has it, or measured. `calibration`: the data,
/// if it was loaded. Throws RecipeError, before any data is read, for a recipe that the model cannot follow. Collective.
recipe::Recipe decide(Rank& rank, const setup::RunSetup& setup, std::optional<Calibration>& calibration);

/// The same for a plan, with values that lead to the same plan, or to one that needs no less memory.
recipe::Recipe assume_decisions(const setup::RunSetup& setup);

/// Whether a recipe leaves something to measurements.
bool leaves_decisions(const recipe::Recipe& recipe);

/// What is measured before them, as far as it is planned.
std::vector<MeasuringStep> plan_decisions(const setup::RunSetup& setup,
                                          const std::function<std::vector<plan::SampleShape>()>& samples,
                                          std::int64_t batch_tokens);

}  // namespace layerpress::run
