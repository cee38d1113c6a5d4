#include "layerpress/verify.h"

#include <algorithm>
#include <optional>
#include <set>

#include "layerpress/base/text.h"
#include "layerpress/checkpoint/model_location.h"
#include "layerpress/setup/hub.h"
#include "layerpress/setup/open_model.h"
#include "layerpress/verification/agreement.h"
#include "layerpress/verification/comparison.h"
#include "layerpress/verification/stored_values.h"

namespace layerpress {
namespace {

constexpr std::size_t kWorst = 10;

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

void compare_with_source(const setup::OpenedModel& model, const VerifyOptions& options, const RunControl& control,
                         verification::Findings& findings, Json& result) {
  const setup::OpenedModel source = setup::open_model(
      options.source, {.graph = options.model_graph, .trust_remote_code = options.trust_remote_code}, control);
  const verification::Changes changes = verification::allowed_changes(*model.stored);
  if (changes == verification::Changes::kRotated)
    findings.warning("source", options.model, "its recipe turns or removes weights, so that values are not compared");
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
