#include "layerpress/run/results/publication.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string>

#include "layerpress/base/file.h"
#include "layerpress/base/text.h"
#include "layerpress/output/importance_output.h"
#include "layerpress/output/measurement_log.h"
#include "layerpress/residency/device_memory.h"
#include "layerpress/run/compression/uncalibrated.h"
#include "layerpress/run/results/model_card.h"
#include "layerpress/run/results/result_facts.h"
#include "layerpress/run/results/run_summary.h"
#include "layerpress/setup/assignment/written_recipe.h"
#include "layerpress/setup/opening/kept_weights.h"
#include "layerpress/setup/opening/quantized_source.h"
#include "layerpress/verification/agreement.h"
#include "layerpress/verification/stored_values.h"

namespace layerpress::run {
namespace {

/// The loss that quantizing again adds to modules that are stored quantized.
void add_requantized(const Rank& rank, const setup::RunSetup& setup, OneshotSummary& summary) {
  std::set<std::string> names;
  for (const setup::RequantizedModule& module : setup::requantized_modules(setup.model, setup.assignments))
    names.insert(module.name);
  if (names.empty()) return;
  double sum = 0, greatest = 0;
  std::string worst = *names.begin();
  for (const Json& module : summary.details["modules"]) {
    const auto name = module["module"].get<std::string>();
    if (names.count(name) == 0) continue;
    const auto error = module["weight_error"].get<double>();
    sum += error;
    if (error > greatest) greatest = error, worst = name;
  }
  const double mean = sum / static_cast<double>(names.size());
  summary.details["requantized"] = {
      {"modules", names.size()}, {"mean_error", mean}, {"greatest_error", greatest}, {"greatest_in", worst}};
  if (greatest == 0)
    return rank.control.message(LogLevel::kInfo,
                                fmt::format("quantized again without a loss: {}", counted(names.size(), "module")));
  rank.control.message(LogLevel::kWarning,
                       fmt::format("quantized again: {}; this added a relative error of {:.4g} on average, "
                                   "at most {:.4g} ({}); the summary has each module's weight_error",
                                   counted(names.size(), "module"), mean, greatest, worst));
}

void add_uncalibrated(const Rank& rank, const std::vector<UncalibratedLinear>& linears, OneshotSummary& summary) {
  summary.details["uncalibrated"] = Json::array();
  for (const UncalibratedLinear& linear : linears)
    summary.details["uncalibrated"].push_back({{"module", linear.module}, {"why", linear.why}});
  for (const std::string& line : described(linears)) rank.control.message(LogLevel::kWarning, line);
}

void add_outsized(const Rank& rank, OneshotSummary& summary) {
  const Json found = outsized_errors(summary.details["modules"]);
  summary.details["outsized_errors"] = found;
  if (found.empty()) return;
  rank.control.message(
      LogLevel::kWarning,
      fmt::format(
          "{} {} an error greater than {} outputs or weights themselves, most of all {}; use more bits, smaller "
          "groups, or leave such modules out",
          found.size(), found.size() == 1 ? "module has" : "modules have", found.size() == 1 ? "its" : "their",
          found[0]["module"].get<std::string>()));
}

/// Experts that were calibrated on more tokens than the router gave them, because these were too few.
void add_filled_experts(const Rank& rank, std::int64_t min_tokens, OneshotSummary& summary) {
  std::set<std::string> experts, layers;
  for (const Json& module : summary.details["modules"]) {
    const auto routed = module.find("routed_tokens");
    if (routed == module.end() || module["tokens"].get<std::int64_t>() <= routed->get<std::int64_t>()) continue;
    const std::string expert = parent_name(module["module"].get<std::string>());  // removes the linear's name
    experts.insert(expert);
    layers.insert(parent_name(expert));
  }
  summary.details["filled_experts"] = experts.size();
  if (experts.empty()) return;
  rank.control.message(LogLevel::kInfo, fmt::format("{} of {} had fewer than {} tokens and {} filled up",
                                                    counted(experts.size(), "expert"), counted(layers.size(), "layer"),
                                                    min_tokens, experts.size() == 1 ? "was" : "were"));
}

/// Copies the importance file to its place.
void write_importance(const OneshotOptions& options, const output::RunFolder& folder) {
  if (options.imatrix.empty()) return;
  const auto file = MappedFile::open(folder.path() / output::ImportanceOutput::kFileName);
  write_text_file(options.imatrix, {reinterpret_cast<const char*>(file->data()), file->size()});
}

/// Collective; called before the output gets its name, so that a rank lost here does not make a finished output look
/// failed.
OneshotSummary summarize(Rank& rank, const Work& work, std::uint64_t spilled_bytes,
                         const output::OutputWriter& output) {
  OneshotSummary summary;
  summary.output = rank.options.output;
  summary.output_bytes = output.total_bytes();
  summary.seconds = rank.timer.seconds();
  const RankReport report{.seconds = summary.seconds,
                          .peak_anonymous_bytes = std::max(rank.earlier_peak_bytes, rank.sampler.peak_bytes()),
                          .peak_device_bytes = residency::peak_device_bytes(work.setup.placement.device),
                          .spilled_bytes = spilled_bytes,
                          .earlier_planned_bytes = rank.earlier_planned_bytes,
                          .times = rank.times,
                          .plan = work.plan,
                          .modules = output.reports(),
                          .memory = rank.sampler.history()};
  summary.details = run_summary(rank.options, work.setup, report, rank.group);
  if (summary.details.is_null()) return summary;
  summary.details["layerpress"] = LAYERPRESS_VERSION;
  summary.details["output_bytes"] = summary.output_bytes;
  summary.details["size_change"] =
      size_change(summary.details["source_bytes"].get<std::uint64_t>(), summary.output_bytes);
  summary.details["resumed_subgraphs"] = work.resumed_subgraphs;
  const std::vector<UncalibratedLinear> uncalibrated = uncalibrated_linears(work.setup, summary.details["modules"]);
  std::set<std::string> without_tokens;
  for (const UncalibratedLinear& linear : uncalibrated) without_tokens.insert(linear.module);
  for (const Json& module : summary.details["modules"]) {
    if (module["scheme"] != "moved") ++summary.modules;  // a moved head stays dense
    if (!module["fallback"].is_string()) continue;
    ++summary.fallbacks;
    if (without_tokens.count(module["module"].get<std::string>()) != 0) continue;  // told below
    rank.control.message(LogLevel::kWarning, fmt::format("{}: {}", module["module"].get<std::string>(),
                                                         module["fallback"].get<std::string>()));
  }
  add_uncalibrated(rank, uncalibrated, summary);
  add_requantized(rank, work.setup, summary);
  add_outsized(rank, summary);
  add_filled_experts(rank, work.setup.min_tokens_per_expert, summary);
  return summary;
}

/// The cheap part of `verify` for a folder that this run has written: headers, names and shapes of all tensors, config.json against them,
/// scales. Reads no codes. Nothing of other targets. Findings name the folder as `output`, which it is about to become.
verification::Findings check_written(const setup::RunSetup& setup, const std::filesystem::path& folder,
                                     const std::string& output) {
  verification::Findings findings;
  if (!setup.target->has_config()) return findings;
  try {
    setup::OpenedModel written;
    written.stored = checkpoint::Checkpoint::open(folder);
    setup::find_quantized_weights(written);
    const verification::Subject subject{*written.stored, written.quantized, setup.model.traced};
    verification::check_config(subject, findings);
    verification::check_fused(subject, findings);
    verification::check_routers(subject, findings);
    for (const auto& [name, weight] : written.quantized) verification::check_scales(*written.stored, weight, findings);
  } catch (const CheckpointError& error) {
    std::string what = error.what();
    if (const std::size_t at = what.find(folder.string()); at != std::string::npos)
      what.replace(at, folder.string().size(), output);
    findings.fault("files", output, what);
  }
  return findings;
}

/// A result that its readers may refuse or misread is worth a line before anybody tries.
void add_findings(const Rank& rank, const verification::Findings& findings, OneshotSummary& summary) {
  summary.details["findings"] = Json::array();
  for (const verification::Finding& finding : findings.all()) {
    summary.details["findings"].push_back({{"check", finding.check}, {"where", finding.where}, {"what", finding.what}});
    rank.control.message(LogLevel::kWarning, fmt::format("[verify] {}: {}", finding.where, finding.what));
  }
}

void write_summary(const OneshotOptions& options, const OneshotSummary& summary) {
  if (!options.summary.empty()) write_text_file(options.summary, summary.details.dump(2) + "\n");
}

}  // namespace

OneshotSummary publish(Rank& rank, const Work& work, std::uint64_t spilled_bytes, output::RunFolder& folder,
                       output::OutputWriter& output) {
  rank.control.step(work.setup.subgraphs.size(), work.setup.subgraphs.size(), "finish");
  {
    const auto phase = rank.times.measure("finish");
    output.finish();
    folder.remove_scratch();
  }
  OneshotSummary summary = summarize(rank, work, spilled_bytes, output);  // here all ranks' files are complete
  if (rank.group.is_first()) {
    output.write_index();
    const target::Finished finished{
        .source = *work.setup.model.checkpoint,
        .recipe = setup::recipe_text(work.setup.model, work.setup.recipe, work.setup.modifiers),
        .config = [&] { return output::output_config(work.setup); },
        .card = [&] { return model_card(rank.options, work.setup, summary); }};
    work.setup.target->write_others(finished, folder.path());
    output::OutputWriter::remove_scratch(folder.path());
    add_findings(rank, check_written(work.setup, folder.path(), rank.options.output), summary);
    rank.control.check_stop();
    write_importance(rank.options, folder);
    folder.commit();
    write_summary(rank.options, summary);
  }
  try {
    rank.group.barrier();
  } catch (const DistributedError& error) {  // a rank that is lost now takes nothing with it
    if (!rank.group.is_first()) throw;
    throw DistributedError("{}; the output is complete in {}", error.what(), rank.options.output);
  }
  return summary;
}

OneshotSummary already_complete(const Rank& rank) {
  if (rank.group.is_first()) output::MeasurementLog::remove(rank.options.output);
  if (rank.group.is_first() && std::filesystem::is_directory(rank.options.output))
    output::RunFolder::remove_leftovers(rank.options.output);
  OneshotSummary summary;
  summary.already_complete = true;
  summary.output = rank.options.output;
  summary.seconds = rank.timer.seconds();
  summary.details = {{"layerpress", LAYERPRESS_VERSION}, {"output", rank.options.output}, {"already_complete", true}};
  if (rank.group.is_first()) write_summary(rank.options, summary);
  return summary;
}

}  // namespace layerpress::run
