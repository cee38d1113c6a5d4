#pragma once

#include <string>

#include "layerpress/base/error.h"
#include "layerpress/dist/group.h"
#include "layerpress/oneshot.h"

namespace layerpress::run {

/// Whether the options leave the choice of each linear's scheme to measurements.
bool asks_for_mixed_precision(const OneshotOptions& options);

/// A choice of schemes.
struct MixedPrecision {
  OneshotOptions options;           ///< of a run with the recipe that was chosen
  Json decision;                    ///< the result of layerpress::mixed_precision (oneshot.h)
  std::uint64_t planned_bytes = 0;  ///< the greatest planned peak of measuring; 0 for an earlier run's choice
};

/// Measures and chooses. With `resume`, an unfinished run's choice is used again. `writes`: whether a run follows, so that what would refuse
/// its output later is refused first. Throws UsageError. Collective.
MixedPrecision choose_precision(const OneshotOptions& options, const RunControl& control, dist::Group& group,
                                bool writes);

/// What a choice would take.
struct PlannedPrecision {
  MixedPrecision assumed;  ///< a choice that may follow
  Json steps;              ///< of the measurement: name, peak_bytes, device_peak_bytes, smallest_budget_bytes, seconds
};

/// Plans the measurement on this rank's data. Throws UsageError, and MemoryError if the budgets are too small. Collective.
PlannedPrecision plan_precision(OneshotOptions options, const RunControl& control, dist::Group& group);

/// A refusal of the options that with_mixed_precision() has made of a recipe, in the recipe's words.
std::string in_words_of_recipe(const OneshotOptions& given, std::string refusal);

/// Calls `choose`, which may be one of the above, so that its refusals name what the caller gave.
template <typename Function>
auto choose_as_given(const OneshotOptions& given, Function&& choose) {
  try {
    return choose();
  } catch (const UsageError& refusal) {
    throw UsageError("{}", in_words_of_recipe(given, refusal.what()));
  }
}

}  // namespace layerpress::run
