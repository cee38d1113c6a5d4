#include "layerpress/run/decisions/decisions.h"

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "layerpress/base/file.h"
#include "layerpress/output/journal.h"
#include "layerpress/run/decisions/chosen_experts.h"
#include "layerpress/run/decisions/layer_sparsities.h"
#include "layerpress/run/decisions/measuring_run.h"
#include "layerpress/setup/assignment/group_sizes.h"
#include "layerpress/setup/assignment/recipe_rewrites.h"
#include "layerpress/setup/rank_agreement.h"

namespace layerpress::run {
namespace {

/// A checksum of the tokens that a choice was made on.
constexpr const char* kMeasuredOn = "measured_on";

/// Of a measurement's log: what was decided.
constexpr const char* kChoice = "choice";

/// A new decision is its files and a line here.
const std::vector<Decision>& decisions() {
  static const std::vector<Decision> kAll = {experts_decision(), sparsities_decision()};
  return kAll;
}

/// The decision that an entry leaves open, or null.
const Decision* open_decision(const recipe::ModifierEntry& entry) {
  for (const Decision& decision : decisions())
    if (decision.is_open(entry)) return &decision;
  return nullptr;
}

/// The recipe of an unfinished or a finished run with this output; "": there is none.
std::string earlier_recipe(const std::string& output) {
  const std::vector<Json> records = output::Journal::read_all(PendingDirectory::pending_path(output));
  if (!records.empty()) return json_get_or<std::string>(records.front(), "recipe", "journal", "");
  const std::filesystem::path file = std::filesystem::path(output) / "recipe.yaml";
  return std::filesystem::is_regular_file(file) ? read_text_file(file) : "";
}

OrderedJson without_choice(OrderedJson arguments, const Decision& decision) {
  arguments.erase(decision.argument);
  arguments.erase(kMeasuredOn);
  return arguments;
}

/// The arguments with which an earlier run made the same choice; null: none did.
OrderedJson earlier_choice(const OneshotOptions& options, const recipe::ModifierEntry& entry,
                           const Decision& decision) {
  if (!options.resume) return nullptr;
  try {
    const std::string text = earlier_recipe(options.output);
    if (text.empty()) return nullptr;
    for (const recipe::ModifierEntry& earlier : recipe::parse_recipe(text, options.output).modifiers)
      if (earlier.type == entry.type && json_has(earlier.arguments, decision.argument) &&
          without_choice(earlier.arguments, decision) == entry.arguments)
        return earlier.arguments;
  } catch (const Error&) {
    // A damaged run is found later.
  }
  return nullptr;
}

/// All that choices are measured on.
struct OpenMeasurement {
  setup::OpenedModel changed;
  output::MeasurementLog log;
};

/// The value that an interrupted measurement has found, or a new one.
OrderedJson measured_value(Rank& rank, const setup::RunSetup& setup, OpenMeasurement& measured,
                           const recipe::ModifierEntry& entry, const Decision& decision,
                           const Calibration& calibration) {
  const std::string arguments = entry.arguments.dump();
  for (const Json& record : measured.log.found(kChoice))
    if (record.value("modifier", "") == entry.type && record.value("arguments", "") == arguments)
      return OrderedJson::parse(json_get<std::string>(record, "value", "measurement"));
  OrderedJson value;
  try {
    value = decision.measure(rank, setup, measured.changed, entry, calibration, measured.log);
  } catch (const InterruptedError&) {
    throw InterruptedError("{}", interruption(measured.log));
  }
  // As texts, because the order of members is that of the recipe.
  measured.log.add(kChoice, {{"modifier", entry.type}, {"arguments", arguments}, {"value", value.dump()}});
  return value;
}

/// The arguments with a choice. Refuses data other than that of an earlier one.
OrderedJson decided(Rank& rank, const setup::RunSetup& setup, OpenMeasurement& measured,
                    const recipe::ModifierEntry& entry, const Decision& decision, const Calibration& calibration) {
  OrderedJson earlier = OrderedJson::parse(
      rank.group.broadcast_text(rank.group.is_first() ? earlier_choice(rank.options, entry, decision).dump() : "", 0));
  if (!earlier.is_null()) {
    if (!json_has(earlier, kMeasuredOn) || Json(earlier[kMeasuredOn]) != calibration.identity)
      throw UsageError(
          "[resume] {}: {} were chosen on other data; use the same dataset, or start over with --overwrite",
          rank.options.output, decision.chosen);
    rank.control.message(LogLevel::kInfo, fmt::format("{} are those of the run that is continued", decision.chosen));
    return earlier;
  }
  OrderedJson arguments = entry.arguments;
  arguments[decision.argument] = measured_value(rank, setup, measured, entry, decision, calibration);
  arguments[kMeasuredOn] = calibration.identity;
  return arguments;
}

/// The model as the recipe changes it. What the recipe cannot do is refused before anything is measured.
setup::OpenedModel changed_model(const OneshotOptions& options, const setup::RunSetup& setup) {
  setup::OpenedModel model = setup.model;
  setup::apply_rewrites(setup.modifiers, model);
  const compression::Assignments assignments = setup::assign(model, setup.modifiers, *setup.target);
  setup::check_group_sizes(options, model, setup.modifiers, assignments);
  return model;
}

}  // namespace

recipe::Recipe decide(Rank& rank, const setup::RunSetup& setup, std::optional<Calibration>& calibration) {
  for (const Decision& decision : decisions())
    if (decision.check != nullptr) decision.check(rank, setup.recipe);
  recipe::Recipe recipe = setup.recipe;
  std::optional<OpenMeasurement> measured;
  std::shared_ptr<dist::CoreBinding> binding;
  for (recipe::ModifierEntry& entry : recipe.modifiers) {
    const Decision* decision = open_decision(entry);
    if (decision == nullptr) continue;
    if (!calibration) {
      setup::OpenedModel changed = changed_model(rank.options, setup);
      require_output(rank.options, setup, rank.group);
      setup::require_same_request(rank.options, setup, rank.group);
      if (setup.placement.device.is_cpu()) binding = rank.group.bind_threads(setup.threads);
      calibration = load_calibration(rank, setup, setup::agree_on_data(rank.options.dataset_split, rank.group));
      measured.emplace(OpenMeasurement{std::move(changed), open_log(rank, setup, *calibration)});
    }
    entry.arguments = decided(rank, setup, *measured, entry, *decision, *calibration);
  }
  for (const Decision& decision : decisions())
    if (decision.finish != nullptr) decision.finish(rank, recipe);
  return recipe;
}

recipe::Recipe assume_decisions(const setup::RunSetup& setup) {
  recipe::Recipe recipe = setup.recipe;
  for (recipe::ModifierEntry& entry : recipe.modifiers)
    if (const Decision* decision = open_decision(entry); decision != nullptr && decision->assume != nullptr)
      entry.arguments[decision->argument] = decision->assume(setup, entry);
  return recipe;
}

bool leaves_decisions(const recipe::Recipe& recipe) {
  return std::ranges::any_of(recipe.modifiers, [](const auto& entry) { return open_decision(entry) != nullptr; });
}

std::vector<MeasuringStep> plan_decisions(const setup::RunSetup& setup,
                                          const std::function<std::vector<plan::SampleShape>()>& samples,
                                          std::int64_t batch_tokens) {
  std::vector<MeasuringStep> steps;
  for (const recipe::ModifierEntry& entry : setup.recipe.modifiers)
    if (const Decision* decision = open_decision(entry); decision != nullptr && decision->plan != nullptr)
      steps.push_back(decision->plan(setup, samples(), batch_tokens));
  return steps;
}

}  // namespace layerpress::run
