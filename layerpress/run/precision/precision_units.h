#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "layerpress/plan/run_plan.h"
#include "layerpress/recipe/precision_choice.h"
#include "layerpress/run/compression/rank.h"
#include "layerpress/run/decisions/measuring_run.h"
#include "layerpress/run/decisions/scheme_comparison.h"
#include "layerpress/setup/tied_modules.h"

namespace layerpress::run {

/// Linears that get one scheme.
struct MeasuredUnit {
  setup::TiedModules tied;
  std::int64_t weights = 0;  ///< elements
};

/// The loss of a candidate that a unit cannot have.
inline constexpr double kImpossible = 1e30;

/// The units of a model, what each candidate costs there, and what was measured to know it.
struct MeasuredUnits {
  std::vector<MeasuredUnit> units{};
  /// The KL divergence in nats per token where one unit alone is rounded to nearest in one candidate.
  std::vector<std::vector<double>> predicted{};
  std::vector<double> left{};  ///< the share of each unit's divergence that GPTQ leaves; 1 if it does not follow
  std::vector<recipe::PrecisionUnit> options{};     ///< a loss is the product of the two
  std::int64_t samples = 0, tokens = 0;             ///< of all ranks
  std::uint64_t planned_bytes = 0;                  ///< the greatest planned peak of this rank's measurements
  std::string disturbed_by{};                       ///< the candidate whose divergences were measured
  data::CalibrationSet beginnings{};                ///< on which they were, of this rank
  std::shared_ptr<const setup::RunSetup> served{};  ///< the model in which they were, see served_setup
};

/// The units, with what each candidate takes there and without losses.
MeasuredUnits sized_units(const Rank& rank, const std::vector<std::string>& candidates,
                          const SchemeComparison& comparison);

/// Plans measure_units and measure_choices for three models on this rank's data. Throws MemoryError if the budgets are too small.
std::vector<MeasuringStep> plan_measurement(Rank& rank, const std::vector<std::string>& candidates,
                                            const SchemeComparison& comparison, const MeasuredUnits& units,
                                            const data::CalibrationSet& set);

/// Measures the losses of the candidates in two passes. The first gives each linear's output error in each candidate, from the Gram matrices of its
/// inputs. The second gives the KL divergence of the predictions where one unit alone is rounded to one candidate, the one with the greatest
/// errors. The loss of another candidate in the unit is that divergence times the quotient of the output errors. If GPTQ follows, the first pass
/// also says what it leaves of errors: least where inputs are correlated most. `is_kept`: an interrupted measurement goes on with --resume. Collective.
void measure_units(Rank& rank, const std::vector<std::string>& candidates, SchemeComparison& comparison,
                   MeasuredUnits& units, bool is_kept);

/// The KL divergences of whole models in nats per token, on the samples of measure_units: for each model, a candidate for every unit, to which its
/// weights are rounded. Collective.
std::vector<double> measure_choices(Rank& rank, const std::vector<std::string>& candidates,
                                    const SchemeComparison& comparison, const MeasuredUnits& units,
                                    const std::vector<std::vector<std::size_t>>& models);

}  // namespace layerpress::run
