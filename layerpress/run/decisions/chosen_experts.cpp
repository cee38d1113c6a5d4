#include "layerpress/run/decisions/chosen_experts.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "layerpress/base/file.h"
#include "layerpress/base/files/missing_folder.h"
#include "layerpress/modifier/pruning/reap.h"
#include "layerpress/run/compression/own_files.h"
#include "layerpress/run/decisions/expert_measurement.h"
#include "layerpress/run/decisions/expert_plan.h"

namespace layerpress::run {
namespace {

using modifier::ExpertPruning;

bool is_pruning(const recipe::ModifierEntry& entry) { return entry.type == ExpertPruning::kType; }

bool is_undecided(const recipe::ModifierEntry& entry) {
  return is_pruning(entry) && !json_has(entry.arguments, "kept_experts");
}

ExpertPruning pruning_of(const recipe::ModifierEntry& entry) { return {Json(entry.arguments), entry.where}; }

/// Whether the file is a list of kept experts, as an earlier run wrote it. A recipe, which may be a stranger's, names it.
bool is_report(const std::string& path) {
  const Json found = Json::parse(read_text_file(path), nullptr, /*allow_exceptions=*/false);
  return found.is_object() && !found.empty() && std::all_of(found.begin(), found.end(), [](const Json& layer) {
           return layer.is_array() && std::all_of(layer.begin(), layer.end(),
                                                  [](const Json& expert) { return expert.is_number_integer(); });
         });
}

void check_experts(const Rank& rank, const recipe::Recipe& recipe) {
  bool measures = false;
  for (const recipe::ModifierEntry& entry : recipe.modifiers) {
    if (!is_pruning(entry)) continue;
    if (rank.options.model_in_memory && !pruning_of(entry).is_uniform())
      throw RecipeError(
          "[recipe.check] {}: a model in memory has one number of experts for all layers; leave out 'uniform: false', "
          "or pass the model's folder",
          entry.where);
    if (const std::string path = pruning_of(entry).report_path(); rank.group.is_first() && !path.empty()) {
      require_own_file(rank.options, "report_path", path);
      if (std::error_code failure; std::filesystem::exists(path, failure) && !is_report(path))
        throw RecipeError("[recipe.check] {}: report_path {} is there and is no list of experts; name another file",
                          entry.where, path);
      require_writable("report_path", path);
    }
    if (is_undecided(entry) && std::exchange(measures, true))
      throw RecipeError("[recipe.check] {}: experts are removed once; leave the second modifier out", entry.where);
  }
}

OrderedJson measure_experts(Rank& rank, const setup::RunSetup& setup, const setup::OpenedModel& changed,
                            const recipe::ModifierEntry& entry, const Calibration& calibration,
                            output::MeasurementLog& log) {
  return ExpertPruning::report(measured_choice(rank, setup, pruning_of(entry), changed.traced, calibration, log));
}

/// The first experts, as many as will stay.
OrderedJson assume_experts(const setup::RunSetup& setup, const recipe::ModifierEntry& entry) {
  const ExpertPruning pruning = pruning_of(entry);
  return ExpertPruning::report(pruning.first_experts(pruning.mixture_of(setup.model)));
}

MeasuringStep plan_measurement_of_experts(const setup::RunSetup& setup, const std::vector<plan::SampleShape>& samples,
                                          std::int64_t batch_tokens) {
  return {"contributions of experts", setup, plan_experts(setup, samples, batch_tokens)};
}

void write_reports(const Rank& rank, const recipe::Recipe& recipe) {
  if (!rank.group.is_first()) return;
  for (const recipe::ModifierEntry& entry : recipe.modifiers) {
    if (!is_pruning(entry)) continue;
    const ExpertPruning pruning = pruning_of(entry);
    if (!pruning.report_path().empty())
      write_text_file(pruning.report_path(), ExpertPruning::report(pruning.kept()).dump(2) + "\n");
  }
}

}  // namespace

Decision experts_decision() {
  return {.argument = "kept_experts",
          .chosen = "the experts that stay",
          .is_open = is_undecided,
          .measure = measure_experts,
          .assume = assume_experts,
          .plan = plan_measurement_of_experts,
          .check = check_experts,
          .finish = write_reports};
}

}  // namespace layerpress::run
