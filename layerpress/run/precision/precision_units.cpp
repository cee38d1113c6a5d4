#include "layerpress/run/precision/precision_units.h"

#include <algorithm>
#include <map>
#include <utility>

#include "layerpress/base/system/machine.h"
#include "layerpress/base/text.h"
#include "layerpress/graph/weight_matrix.h"
#include "layerpress/modifier/sensitivity.h"
#include "layerpress/quant/rounding/value_parameters.h"
#include "layerpress/recipe/candidate_schemes.h"
#include "layerpress/run/compression/compression_run.h"
#include "layerpress/run/compression/model_name.h"
#include "layerpress/run/decisions/measuring_run.h"
#include "layerpress/run/precision/divergence_plan.h"
#include "layerpress/run/precision/unit_divergences.h"
#include "layerpress/setup/rank_agreement.h"

namespace layerpress::run {
namespace {

/// On which divergences are measured, of all ranks together.
constexpr std::int64_t kKeptTokens = 512;

/// The candidates that are measured, in order, and the places that they have among all.
struct Rounded {
  std::vector<std::string> names;
  std::vector<std::size_t> places;
};

Rounded rounded_candidates(const std::vector<std::string>& candidates) {
  Rounded rounded;
  for (std::size_t c = 0; c < candidates.size(); ++c) {
    if (candidates[c] == recipe::kLeftAlone) continue;
    rounded.names.push_back(candidates[c]);
    rounded.places.push_back(c);
  }
  return rounded;
}

/// What a linear's weight takes in the result if it is left alone.
std::uint64_t plain_bytes(const setup::RunSetup& setup, const std::string& weight) {
  std::uint64_t bytes = 0;
  if (const auto stored = setup.model.quantized.find(weight); stored != setup.model.quantized.end())
    for (const auto& part : stored->second.compressed_layout)
      bytes += checkpoint::TensorSpec{part.suffix, part.dtype, part.shape}.nbytes();
  if (bytes > 0) return bytes;
  for (const checkpoint::TensorSpec& form : setup.target->plain_forms(setup.model.checkpoint->spec(weight)))
    bytes += form.nbytes();
  return bytes;
}

/// Sums over the unit's linears of their relative output errors, by candidate.
std::vector<double> errors_of(const setup::TiedModules& tied,
                              const std::map<std::string, const compression::ModuleReport*>& reports,
                              std::size_t candidates) {
  std::vector<double> sums(candidates, 0.0);
  for (const std::string& module : tied.modules) {
    const std::vector<std::optional<double>> errors = modifier::relative_errors(*reports.at(module));
    for (std::size_t c = 0; c < candidates; ++c) sums[c] += errors[c].value_or(0);
  }
  return sums;
}

/// The candidate with the greatest errors, whose divergences are measured best.
std::size_t coarsest(const std::vector<std::vector<double>>& errors, std::size_t candidates) {
  std::vector<double> sums(candidates, 0.0);
  for (const std::vector<double>& own : errors)
    for (std::size_t c = 0; c < candidates; ++c) sums[c] += own[c];
  return static_cast<std::size_t>(std::max_element(sums.begin(), sums.end()) - sums.begin());
}

void add_sizes(const SchemeComparison& comparison, const MeasuredLinears& linears, const Rounded& rounded,
               MeasuredUnit& unit, recipe::PrecisionUnit& options) {
  for (const std::string& module : unit.tied.modules) {
    const MeasuredLinear& linear = linears.at(module);
    unit.weights += linear.shape.rows * linear.shape.columns;
    for (std::size_t c = 0; c < rounded.names.size(); ++c)
      options[rounded.places[c]].bits += 8 * stored_bytes(*comparison.schemes[c], linear.shape);
    if (rounded.places.size() == options.size()) continue;
    for (std::size_t c = 0; c < options.size(); ++c)
      if (std::find(rounded.places.begin(), rounded.places.end(), c) == rounded.places.end())
        options[c].bits += 8 * plain_bytes(comparison.setup(), linear.weight);
  }
}

/// What rounding a unit to the coarsest candidate costs, and the output errors of all.
struct MeasuredLoss {
  double divergence;
  std::vector<double> errors;
  bool gets_tokens;
};

bool gets_tokens(const setup::TiedModules& tied,
                 const std::map<std::string, const compression::ModuleReport*>& reports) {
  return std::any_of(tied.modules.begin(), tied.modules.end(),
                     [&](const std::string& module) { return reports.at(module)->tokens > 0; });
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// Units that no sample reaches, such as the cross attention of samples without images, did not cost nothing: they get the median of the others,
/// scaled by their output errors if these are known. Returns their places.
std::vector<std::size_t> fill_unmeasured(std::vector<MeasuredLoss>& losses, std::size_t coarse) {
  std::vector<std::size_t> unmeasured;
  std::vector<double> divergences, factors;
  for (std::size_t u = 0; u < losses.size(); ++u) {
    const MeasuredLoss& own = losses[u];
    if (own.divergence > 0 && own.errors[coarse] > 0) {
      divergences.push_back(own.divergence);
      factors.push_back(own.divergence / own.errors[coarse]);
    } else if (own.divergence <= 0 && (own.errors[coarse] > 0 || !own.gets_tokens)) {
      unmeasured.push_back(u);
    }
  }
  if (factors.empty()) return {};
  const double divergence = median(divergences), factor = median(factors);
  std::vector<double> typical;  // output errors of the unit whose divergence is the median
  for (const MeasuredLoss& own : losses)
    if (own.divergence == divergence) typical = own.errors;
  for (const std::size_t u : unmeasured) {
    MeasuredLoss& own = losses[u];
    if (own.errors[coarse] <= 0) own.errors = typical;
    own.divergence = factor * own.errors[coarse];
  }
  return unmeasured;
}

void say_unmeasured(const Rank& rank, const MeasuredUnits& units, const std::vector<std::size_t>& unmeasured) {
  if (unmeasured.empty() || !rank.group.is_first()) return;
  std::vector<std::string> modules;
  for (const std::size_t u : unmeasured) {
    const std::vector<std::string>& own = units.units[u].tied.modules;
    modules.insert(modules.end(), own.begin(), own.end());
  }
  rank.control.message(
      LogLevel::kWarning,
      fmt::format("[mixed_precision] {} linears do not change the predictions on the first samples, so their loss is "
                  "taken from the others'; put samples that reach them first: {}",
                  modules.size(), join_first(modules, 4)));
}

/// Candidates with static scales of inputs are none for linears that no token reaches.
void exclude_unknown_scales(const SchemeComparison& comparison, const Rounded& rounded,
                            const std::map<std::string, const compression::ModuleReport*>& reports,
                            MeasuredUnits& units) {
  for (std::size_t u = 0; u < units.units.size(); ++u) {
    const std::vector<std::string>& modules = units.units[u].tied.modules;
    if (std::all_of(modules.begin(), modules.end(),
                    [&](const std::string& name) { return reports.at(name)->tokens > 0; }))
      continue;
    for (std::size_t c = 0; c < rounded.places.size(); ++c)
      if (quant::has_stored_inputs(*comparison.schemes[c])) units.options[u][rounded.places[c]].loss = kImpossible;
  }
}

/// The shares of the units' losses that GPTQ leaves, weighted by their linears' errors. A unit whose inputs say nothing gets the median.
std::vector<double> left_by_gptq(const MeasuredUnits& units,
                                 const std::map<std::string, const compression::ModuleReport*>& reports,
                                 std::size_t candidates, std::size_t coarse) {
  std::vector<std::optional<double>> left;
  std::vector<double> known;
  for (const MeasuredUnit& unit : units.units) {
    double all = 0, remaining = 0;
    for (const std::string& module : unit.tied.modules) {
      const std::vector<std::optional<double>> errors = modifier::relative_errors(*reports.at(module));
      if (errors.size() <= candidates || !errors[coarse]) continue;
      all += *errors[coarse], remaining += *errors[coarse] * errors[candidates].value_or(1);
    }
    left.push_back(all > 0 ? std::optional(remaining / all) : std::nullopt);
    if (left.back()) known.push_back(*left.back());
  }
  const double typical = known.empty() ? 1 : median(known);
  std::vector<double> shares;
  for (const std::optional<double>& own : left) shares.push_back(own.value_or(typical));
  return shares;
}

/// Roundings to the candidates; nothing for those that leave linears alone.
class Roundings {
 public:
  Roundings(const OneshotOptions& options, const std::vector<std::string>& candidates) {
    for (const std::string& name : candidates) {
      roundings_.emplace_back();
      if (name != recipe::kLeftAlone) roundings_.back() = setup::make_modifiers(recipe::rounding_to(name, options));
    }
  }

  /// For each model, a candidate for every unit.
  std::vector<std::vector<Disturbance>> models(const MeasuredUnits& units,
                                               const std::vector<std::vector<std::size_t>>& choices) const {
    std::vector<std::vector<Disturbance>> models;
    for (const std::vector<std::size_t>& choice : choices) {
      std::vector<Disturbance>& own = models.emplace_back();
      for (std::size_t u = 0; u < choice.size(); ++u)
        if (!roundings_[choice[u]].empty()) own.push_back({units.units[u].tied.modules, of(choice[u])});
    }
    return models;
  }

  /// Models in each of which one unit has a candidate.
  std::vector<std::vector<Disturbance>> models(const MeasuredUnits& units, std::size_t candidate) const {
    std::vector<std::vector<Disturbance>> models;
    for (const MeasuredUnit& unit : units.units) models.push_back({{unit.tied.modules, of(candidate)}});
    return models;
  }

 private:
  const compression::Quantizer* of(std::size_t candidate) const {
    return &dynamic_cast<const compression::Quantizer&>(*roundings_[candidate].front());
  }

  std::vector<setup::Modifiers> roundings_;
};

std::int64_t kept_tokens(const Rank& rank) { return std::max<std::int64_t>(64, kKeptTokens / rank.group.size()); }

/// The plan of divergences that takes most; they are measured with one of the candidates, which one is not known yet.
plan::RunPlan largest_plan(const SchemeComparison& comparison, const MeasuredUnits& units, const Roundings& roundings,
                           const Rounded& rounded, const std::vector<plan::SampleShape>& samples) {
  std::vector<plan::RunPlan> plans;
  for (const std::size_t place : rounded.places)
    plans.push_back(plan_divergences({comparison.setup(), *units.served, roundings.models(units, place)}, samples));
  return std::move(*std::max_element(plans.begin(), plans.end(), [](const auto& one, const auto& other) {
    return one.memory.peak.host < other.memory.peak.host;
  }));
}

/// The divergences of models, which the log keeps.
std::vector<double> measured_or_known(Rank& rank, const Disturbances& disturbances, const data::CalibrationSet& samples,
                                      output::MeasurementLog& log) {
  constexpr const char* kPart = "divergences";
  for (const Json& record : log.found(kPart)) {
    auto known = json_get<std::vector<double>>(record, "figures", "measurement");
    if (known.size() == disturbances.models.size()) return known;
  }
  try {
    std::vector<double> divergences = measure_divergences(rank, disturbances, samples);
    log.add(kPart, {{"figures", divergences}});
    return divergences;
  } catch (const InterruptedError&) {
    throw InterruptedError("{}", interruption(log));
  }
}

}  // namespace

MeasuredUnits sized_units(const Rank& rank, const std::vector<std::string>& candidates,
                          const SchemeComparison& comparison) {
  MeasuredUnits result;
  result.served = std::make_shared<const setup::RunSetup>(served_setup(rank, comparison.setup()));
  const MeasuredLinears linears = linears_of(comparison.setup());
  for (setup::TiedModules& tied : setup::tied_modules(comparison.setup())) {
    result.units.push_back({.tied = std::move(tied)});
    result.options.emplace_back(candidates.size());
    result.predicted.emplace_back(candidates.size());
    add_sizes(comparison, linears, rounded_candidates(candidates), result.units.back(), result.options.back());
  }
  return result;
}

std::vector<MeasuringStep> plan_measurement(Rank& rank, const std::vector<std::string>& candidates,
                                            const SchemeComparison& comparison, const MeasuredUnits& units,
                                            const data::CalibrationSet& set) {
  const Rounded rounded = rounded_candidates(candidates);
  const Roundings roundings(rank.options, candidates);
  const std::vector<plan::SampleShape> beginnings = plan::shapes_of(short_samples(set, kept_tokens(rank)));
  const std::vector<std::vector<std::size_t>> choices(
      3, std::vector<std::size_t>(units.units.size(), rounded.places.front()));
  release_memory(rank);
  const setup::RunSetup& setup = comparison.setup();
  std::vector<MeasuringStep> steps = {
      {"output errors", setup,
       plan::plan_run({.run = setup, .samples = plan::shapes_of(set), .batch_tokens = rank.options.batch_tokens})},
      {"divergences", *units.served, largest_plan(comparison, units, roundings, rounded, beginnings)},
      {"check", *units.served, plan_divergences({setup, *units.served, roundings.models(units, choices)}, beginnings)}};
  for (const MeasuringStep& step : steps) require_memory(step.plan, step.setup, "what the schemes cost");
  return steps;
}

void measure_units(Rank& rank, const std::vector<std::string>& candidates, SchemeComparison& comparison,
                   MeasuredUnits& units, bool is_kept) {
  const Rounded rounded = rounded_candidates(candidates);
  const std::size_t count = rounded.names.size();
  Calibration calibration =
      load_calibration(rank, comparison.setup(), setup::agree_on_data(rank.options.dataset_split, rank.group));
  units.beginnings = short_samples(calibration.set, kept_tokens(rank));
  for (const MeasuringStep& step : plan_measurement(rank, candidates, comparison, units, calibration.set))
    units.planned_bytes = std::max(units.planned_bytes, step.plan.memory.peak.host);
  output::MeasurementLog log =
      is_kept ? open_log(rank, comparison.setup(), calibration) : output::MeasurementLog(rank.group);
  const Measurement measurement =
      measure(rank, comparison.setup(),
              fmt::format("{}: {} linears in {}", last_part(std::filesystem::path(rank.options.model)),
                          comparison.setup().assignments.linears.size(), join(rounded.names)),
              std::move(calibration), log);
  std::map<std::string, const compression::ModuleReport*> reports;
  for (const compression::ModuleReport& report : measurement.reports) reports[report.module] = &report;
  units.samples = measurement.samples, units.tokens = measurement.tokens;
  std::vector<std::vector<double>> errors;
  for (const MeasuredUnit& unit : units.units) errors.push_back(errors_of(unit.tied, reports, count));
  const std::size_t coarse = coarsest(errors, count);
  units.disturbed_by = rounded.names[coarse];
  const Roundings roundings(rank.options, candidates);
  const std::vector<double> divergences =
      measured_or_known(rank, {comparison.setup(), *units.served, roundings.models(units, rounded.places[coarse])},
                        units.beginnings, log);
  std::vector<MeasuredLoss> losses;
  for (std::size_t u = 0; u < units.units.size(); ++u)
    losses.push_back({divergences[u], errors[u], gets_tokens(units.units[u].tied, reports)});
  const std::vector<std::size_t> unmeasured = fill_unmeasured(losses, coarse);
  units.left = left_by_gptq(units, reports, count, coarse);
  for (std::size_t u = 0; u < units.units.size(); ++u)
    for (std::size_t c = 0; c < count; ++c) {
      const double error = losses[u].errors[coarse];
      const double quotient = error > 0 ? losses[u].errors[c] / error : 1;
      units.predicted[u][rounded.places[c]] = losses[u].divergence * quotient;
      units.options[u][rounded.places[c]].loss = losses[u].divergence * quotient * units.left[u];
    }
  exclude_unknown_scales(comparison, rounded, reports, units);
  say_unmeasured(rank, units, unmeasured);
}

std::vector<double> measure_choices(Rank& rank, const std::vector<std::string>& candidates,
                                    const SchemeComparison& comparison, const MeasuredUnits& units,
                                    const std::vector<std::vector<std::size_t>>& models) {
  const Roundings roundings(rank.options, candidates);
  return measure_divergences(rank, {comparison.setup(), *units.served, roundings.models(units, models)},
                             units.beginnings);
}

}  // namespace layerpress::run
