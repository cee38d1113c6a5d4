#include "layerpress/run/chosen_experts.h"

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "layerpress/base/file.h"
#include "layerpress/base/missing_folder.h"
#include "layerpress/modifier/reap.h"
#include "layerpress/output/journal.h"
#include "layerpress/run/expert_measurement.h"
#include "layerpress/setup/group_sizes.h"
#include "layerpress/setup/rank_agreement.h"
#include "layerpress/setup/rewriting.h"

namespace layerpress::run {
namespace {

/// A modifier that removes experts.
struct Pruning {
  std::shared_ptr<const modifier::ExpertPruning> modifier;
  std::size_t place;  // of its entry in the recipe
};

std::vector<Pruning> prunings_of(const recipe::Recipe& recipe) {
  std::vector<Pruning> prunings;
  for (std::size_t i = 0; i < recipe.modifiers.size(); ++i) {
    const recipe::ModifierEntry& entry = recipe.modifiers[i];
    if (entry.type != modifier::ExpertPruning::kType) continue;
    prunings.push_back({std::make_shared<const modifier::ExpertPruning>(entry.arguments, entry.where), i});
  }
  return prunings;
}

/// The first one that still has to choose experts; nothing: there is none.
std::optional<Pruning> undecided(const recipe::Recipe& recipe) {
  for (const Pruning& pruning : prunings_of(recipe))
    if (!pruning.modifier->is_decided()) return pruning;
  return std::nullopt;
}

recipe::Recipe with_arguments(recipe::Recipe recipe, std::size_t place, OrderedJson arguments) {
  recipe.modifiers.at(place).arguments = std::move(arguments);
  return recipe;
}

/// The recipe of an unfinished or a finished run with this output; "": there is none.
std::string earlier_recipe(const std::string& output) {
  const std::vector<Json> records = output::Journal::read_all(PendingDirectory::pending_path(output));
  if (!records.empty()) return json_get_or<std::string>(records.front(), "recipe", "journal", "");
  const std::filesystem::path file = std::filesystem::path(output) / "recipe.yaml";
  return std::filesystem::is_regular_file(file) ? read_text_file(file) : "";
}

/// The arguments with which an earlier run made the same choice; null: none did.
OrderedJson earlier_choice(const OneshotOptions& options, const recipe::ModifierEntry& entry) {
  if (!options.resume) return nullptr;
  try {
    const std::string text = earlier_recipe(options.output);
    if (text.empty()) return nullptr;
    for (const recipe::ModifierEntry& earlier : recipe::parse_recipe(text, options.output).modifiers)
      if (earlier.type == entry.type && json_has(earlier.arguments, "kept_experts") &&
          modifier::ExpertPruning::without_decision(earlier.arguments) == entry.arguments)
        return earlier.arguments;
  } catch (const Error&) {
    // A damaged run is found later.
  }
  return nullptr;
}

/// The arguments with a choice. Refuses data other than that of an earlier one.
OrderedJson decided(Rank& rank, const setup::RunSetup& setup, const Pruning& open, const model::TracedModel& smaller,
                    const Calibration& calibration) {
  const recipe::ModifierEntry& entry = setup.recipe.modifiers.at(open.place);
  OrderedJson arguments = entry.arguments;
  OrderedJson earlier = OrderedJson::parse(
      rank.group.broadcast_text(rank.group.is_first() ? earlier_choice(rank.options, entry).dump() : "", 0));
  if (!earlier.is_null()) {
    if (!json_has(earlier, "measured_on") || Json(earlier["measured_on"]) != calibration.identity)
      throw UsageError(
          "[resume] {}: its experts were chosen on other data; use the same dataset, or start over with --overwrite",
          rank.options.output);
    rank.control.message(LogLevel::kInfo, "the experts that stay are those of the run that is continued");
    return earlier;
  }
  rank.control.message(LogLevel::kInfo, "measuring what each expert contributes");
  const auto kept = measured_choice(rank, setup, *open.modifier, smaller, calibration.set);
  modifier::ExpertPruning::put_decision(kept, calibration.identity, arguments);
  return arguments;
}

/// The model with the first experts, which stand for those that will stay: what the recipe cannot do is refused before anything is
/// measured.
setup::OpenedModel checked(const OneshotOptions& options, const setup::RunSetup& setup) {
  setup::OpenedModel model = setup.model;
  setup::apply_rewrites(setup.modifiers, model);
  const compression::Assignments assignments = setup::assign(model, setup.modifiers, *setup.target);
  setup::check_group_sizes(options, model, setup.modifiers, assignments);
  return model;
}

void write_reports(const Rank& rank, const recipe::Recipe& recipe) {
  if (!rank.group.is_first()) return;
  for (const auto& [pruning, place] : prunings_of(recipe))
    if (!pruning->report_path().empty())
      write_text_file(pruning->report_path(), modifier::ExpertPruning::report(pruning->kept()).dump(2) + "\n");
}

void check_reports(const Rank& rank, const recipe::Recipe& recipe) {
  if (!rank.group.is_first()) return;
  for (const auto& [pruning, place] : prunings_of(recipe))
    if (!pruning->report_path().empty()) require_writable("report_path", pruning->report_path());
}

}  // namespace

recipe::Recipe choose_experts(Rank& rank, const setup::RunSetup& setup, std::optional<Calibration>& calibration) {
  check_reports(rank, setup.recipe);
  recipe::Recipe recipe = setup.recipe;
  if (const std::optional<Pruning> open = undecided(recipe)) {
    const setup::OpenedModel smaller = checked(rank.options, setup);
    setup::require_same_request(rank.options, setup, rank.group);
    const std::shared_ptr<dist::CoreBinding> binding =
        setup.placement.device.is_cpu() ? rank.group.bind_threads(setup.threads) : nullptr;
    calibration = load_calibration(rank, setup, setup::agree_on_data(rank.options.dataset_split, rank.group));
    recipe = with_arguments(std::move(recipe), open->place, decided(rank, setup, *open, smaller.traced, *calibration));
  }
  if (const std::optional<Pruning> second = undecided(recipe))
    throw RecipeError("[recipe.check] {}: experts are removed once; leave the second modifier out",
                      recipe.modifiers[second->place].where);
  write_reports(rank, recipe);
  return recipe;
}

recipe::Recipe assume_experts(const setup::RunSetup& setup) {
  const std::optional<Pruning> open = undecided(setup.recipe);
  if (!open) return setup.recipe;
  OrderedJson arguments = setup.recipe.modifiers.at(open->place).arguments;
  const modifier::ExpertPruning& pruning = *open->modifier;
  modifier::ExpertPruning::put_decision(pruning.first_experts(pruning.mixture_of(setup.model)), nullptr, arguments);
  return with_arguments(setup.recipe, open->place, std::move(arguments));
}

}  // namespace layerpress::run
