#include "layerpress/verify.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>

#include "layerpress/base/text.h"
#include "layerpress/checkpoint/model_location.h"
#include "layerpress/modifier/reap.h"
#include "layerpress/recipe/recipe.h"
#include "layerpress/setup/assignment.h"
#include "layerpress/setup/hub.h"
#include "layerpress/setup/open_model.h"
#include "layerpress/setup/rewriting.h"
#include "layerpress/verification/agreement.h"
#include "layerpress/verification/comparison.h"
#include "layerpress/verification/stored_values.h"

namespace layerpress {
namespace {

constexpr std::size_t kWorst = 10;

/// Modifiers that round weights and leave all else as it is.
const std::set<std::string> kRounding = {"AutoRoundModifier", "GPTQModifier", "QuantizationModifier"};

std::optional<setup::OpenedModel> opened(const std::string& model, const VerifyOptions& options,
                                         const RunControl& control, verification::Findings& findings) {
  try {
    return setup::open_model(model, {.graph = options.model_graph, .trust_remote_code = options.trust_remote_code},
                             control);
  } catch (const CheckpointError& error) {
    findings.fault("files", model, error.what());
  } catch (const RecipeError& error) {  // in quantization_config
    findings.fault("config", model, error.what());
  }
  return std::nullopt;
}

void check_values(const setup::OpenedModel& model, const RunControl& control, verification::Findings& findings) {
  std::set<std::string> parts;
  std::uint64_t done = 0;
  const std::uint64_t total = model.quantized.size();
  for (const auto& [name, weight] : model.quantized) {
    control.check_stop();
    control.phase("check codes", done++, total);
    parts.insert(weight.parts.begin(), weight.parts.end());
    const std::size_t before = findings.all().size();
    verification::check_scales(*model.stored, weight, findings);
    if (findings.all().size() == before) verification::check_codes(weight, findings);
    for (const std::string& part : weight.parts)
      if (model.stored->contains(part)) model.stored->release(part);
  }
  for (const std::string& name : model.stored->names()) {
    control.check_stop();
    const std::string suffix = last_part(name);
    const bool is_parameter = suffix.starts_with("input_") || suffix.starts_with("output_");
    if (parts.count(name) == 0 || is_parameter) verification::check_plain(*model.stored, name, findings);
  }
}

Json as_json(const verification::Findings& findings, bool faults) {
  Json list = Json::array();
  for (const verification::Finding& finding : findings.all())
    if (finding.fault == faults)
      list.push_back({{"check", finding.check}, {"where", finding.where}, {"what", finding.what}});
  return list;
}

Json worst_of(verification::Comparison comparison) {
  std::stable_sort(comparison.errors.begin(), comparison.errors.end(),
                   [](const auto& a, const auto& b) { return a.error > b.error; });
  comparison.errors.resize(std::min(comparison.errors.size(), kWorst));
  Json worst = Json::array();
  for (const verification::WeightError& error : comparison.errors)
    worst.push_back({{"module", error.module}, {"error", error.error}});
  return worst;
}

/// Whether a rotation has random numbers, which other tools draw otherwise.
bool is_random(const recipe::ModifierEntry& entry) {
  return json_get_or<std::string>(entry.arguments, "transform_type", entry.where, "") == "random-hadamard" ||
         json_get_or<bool>(entry.arguments, "randomize", entry.where, false);
}

/// What a modifier changes in the weights beside what its rewrite has already changed in the source.
verification::Changes changes_of(const compression::Modifier& modifier) {
  if (const auto* pruning = dynamic_cast<const modifier::ExpertPruning*>(&modifier))
    return pruning->is_decided() ? verification::Changes::kNone : verification::Changes::kUnknown;
  const bool is_rewrite = dynamic_cast<const rewrite::Rewrite*>(&modifier) != nullptr;
  return is_rewrite || kRounding.contains(modifier.type()) ? verification::Changes::kNone
                                                           : verification::Changes::kScaled;
}

/// Makes those changes in the source that the result's recipe makes before any data, such as rotations and the removal of experts.
/// Returns what other changes it allows.
verification::Changes apply_recipe(const setup::OpenedModel& result, setup::OpenedModel& source) {
  using verification::Changes;
  const std::filesystem::path file = result.stored->directory() / "recipe.yaml";
  if (!std::filesystem::exists(file)) return Changes::kNone;
  try {
    const recipe::Recipe recipe = recipe::read_recipe_file(file);
    const setup::Modifiers modifiers = setup::make_modifiers(recipe);
    setup::apply_rewrites(modifiers, source);
    Changes changes = Changes::kNone;
    for (const auto& modifier : modifiers) changes = std::max(changes, changes_of(*modifier));
    return std::any_of(recipe.modifiers.begin(), recipe.modifiers.end(), is_random) ? Changes::kUnknown : changes;
  } catch (const Error&) {  // a recipe of another tool
    return Changes::kUnknown;
  }
}

void compare_with_source(const setup::OpenedModel& model, const VerifyOptions& options, const RunControl& control,
                         verification::Findings& findings, Json& result) {
  setup::OpenedModel source = setup::open_model(
      options.source, {.graph = options.model_graph, .trust_remote_code = options.trust_remote_code}, control);
  const verification::Changes changes = apply_recipe(model, source);
  if (changes == verification::Changes::kUnknown)
    findings.warning("source", options.model,
                     "its recipe changes weights in a way that it does not tell, so that values are not compared");
  verification::Comparison comparison = verification::compare(model, source, changes, control, findings);
  result["compared"] = comparison.tensors;
  result["worst"] = worst_of(std::move(comparison));
}

Json checked(const VerifyOptions& options, const RunControl& control) {
  const Timer timer;
  setup::set_threads(options.threads);
  if (options.download) setup::download_model(options.model, control);
  (void)checkpoint::locate_model(options.model);  // a wrong name is no fault of a checkpoint
  verification::Findings findings;
  Json result = {{"model", options.model}};
  if (const auto model = opened(options.model, options, control, findings)) {
    const verification::Subject subject{*model->stored, model->quantized, model->traced};
    verification::check_config(subject, findings);
    verification::check_attentions(*model, findings);
    verification::check_fused(subject, findings);
    verification::check_routers(subject, findings);
    check_values(*model, control, findings);
    result["format"] = model->source_format.empty() ? "plain" : model->source_format;
    result["tensors"] = model->stored->names().size();
    result["bytes"] = model->stored->total_bytes();
    result["quantized"] = model->quantized.size();
    if (!options.source.empty()) compare_with_source(*model, options, control, findings, result);
  }
  result["faults"] = as_json(findings, true);
  result["warnings"] = as_json(findings, false);
  result["seconds"] = timer.seconds();
  return result;
}

}  // namespace

Json verify(const VerifyOptions& options, const RunControl& control) {
  try {
    return checked(options, control);
  } catch (const InterruptedError&) {
    throw InterruptedError("[verify] stopped on request; {} is not checked to the end, so there is no result",
                           options.model);
  }
}

}  // namespace layerpress
