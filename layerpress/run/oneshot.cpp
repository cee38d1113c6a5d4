#include "layerpress/oneshot.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "layerpress/base/system/machine.h"
#include "layerpress/base/system/memory_sampler.h"
#include "layerpress/base/text.h"
#include "layerpress/checkpoint/companion_files.h"
#include "layerpress/output/measurement_log.h"
#include "layerpress/output/output_parts.h"
#include "layerpress/output/output_writer.h"
#include "layerpress/output/run_folder.h"
#include "layerpress/output/scratch_space.h"
#include "layerpress/plan/machine_rates.h"
#include "layerpress/plan/plan_report.h"
#include "layerpress/recipe/recipe_of_options.h"
#include "layerpress/run/compression/calibration.h"
#include "layerpress/run/compression/compression_run.h"
#include "layerpress/run/compression/earlier_run.h"
#include "layerpress/run/compression/own_files.h"
#include "layerpress/run/compression/run_together.h"
#include "layerpress/run/compression/settled_setup.h"
#include "layerpress/run/decisions/decisions.h"
#include "layerpress/run/precision/mixed_precision.h"
#include "layerpress/run/results/announcement.h"
#include "layerpress/run/results/hub_transfers.h"
#include "layerpress/run/results/publication.h"
#include "layerpress/run/results/run_report.h"
#include "layerpress/setup/rank_agreement.h"
#include "layerpress/setup/run_identity.h"

namespace layerpress {
namespace {

using output::OutputWriter;
using output::RunFolder;
using run::Rank;

/// A checked request and the output folder that is claimed for it.
struct Claim {
  OneshotOptions options;  // of the run, to which the others refer
  run::EarlierRun earlier;
  run::Settled settled;
  setup::DataDivision division;
  std::unique_ptr<RunFolder> folder;            // refers to the setup
  std::optional<run::Calibration> calibration;  // if the setup needed it

  const setup::RunSetup& setup() const { return *settled.setup; }
};

/// Refuses before the data is read what the result's files cannot hold.
void require_layout(const setup::RunSetup& setup) {
  output::layout_of(setup, output::output_parts(setup, {}), setup::kUnlimited, 1);
}

/// Of this rank's data; without a dataset, as many samples as asked for, of the greatest length.
std::vector<plan::SampleShape> shapes_of_data(const OneshotOptions& options, const setup::RunSetup& setup,
                                              dist::Group& group, const RunControl& control) {
  if (!options.dataset.empty()) {
    const setup::DataDivision division = setup::agree_on_data(options.dataset_split, group);
    return plan::shapes_of(run::load_set(options, setup, division, group, control));
  }
  if (!setup.pipeline->takes_data) return {};
  if (options.num_calibration_samples < 1 || options.max_seq_length < 1)
    throw UsageError("[options] --num-calibration-samples and --max-seq-length must be positive");
  const auto count = dist::partition(options.num_calibration_samples, group.rank(), group.size()).size();
  return std::vector<plan::SampleShape>(static_cast<std::size_t>(count), {options.max_seq_length});
}

/// Adds to a plan what goes before it.
void add_measurement(Json steps, Json& report) {
  for (const Json& step : steps) {
    for (const char* bytes : {"peak_bytes", "device_peak_bytes", "smallest_budget_bytes"})
      report[bytes] = std::max(report[bytes].get<std::uint64_t>(), step[bytes].get<std::uint64_t>());
    report["estimated_seconds"] = report["estimated_seconds"].get<double>() + step["seconds"].get<double>();
  }
  report["measurement"] = std::move(steps);
}

/// Without data, ranks compress the linears that they write. Empty if all ranks compress all linears together.
std::function<bool(graph::NodeId)> own_linears(const setup::RunSetup& setup, const dist::Group& group, int sets) {
  if (setup.pipeline->takes_data || group.size() == 1) return {};
  std::set<graph::NodeId> own;
  for (const output::OutputPart& part : output::output_parts(setup, {sets, /*linears_first=*/true}))
    if (part.linear && part.set % group.size() == group.rank()) own.insert(*part.linear);
  return [own = std::move(own)](graph::NodeId linear) { return own.count(linear) != 0; };
}

struct PlannedRun {
  run::Settled settled;
  plan::RunPlan plan;
};

/// Plans a run with options that leave no precision to measurements. `on_step`: takes what is measured for other decisions.
PlannedRun plan_with(const OneshotOptions& options, Json decision, const RunControl& control, dist::Group& group,
                     const std::function<void(const run::MeasuringStep&)>& on_step) {
  std::optional<std::vector<plan::SampleShape>> loaded;
  const auto samples_for = [&](const setup::RunSetup& setup) {
    if (!loaded) loaded = shapes_of_data(options, setup, group, control);
    return *loaded;
  };
  const auto assume = [&](const setup::RunSetup& undecided) {
    for (const run::MeasuringStep& step : run::plan_decisions(
             undecided, [&] { return samples_for(undecided); }, options.batch_tokens))
      on_step(step);
    return run::assume_decisions(undecided);
  };
  PlannedRun planned{
      run::settle(setup::set_up(options, group, control, assume, std::move(decision)), options, group, control), {}};
  const setup::RunSetup& setup = *planned.settled.setup;
  require_layout(setup);
  if (setup.target->has_config()) checkpoint::require_companions(*setup.model.checkpoint);
  run::say_notes(options, setup, control);
  if (!options.output.empty() && !options.overwrite && !options.resume)
    PendingDirectory::require_free(options.output, !setup.target->only_file().empty());
  planned.plan = plan::plan_run({.run = setup,
                                 .samples = samples_for(setup),
                                 .batch_tokens = options.batch_tokens,
                                 .owns = own_linears(setup, group, group.size())});
  return planned;
}

/// Refuses a budget that has no room for what is left to measurements before these take their time.
void check_budget(const Rank& rank, const Json& decision) {
  if (rank.options.memory_budget.empty() || !run::leaves_decisions(recipe::recipe_of(rank.options))) return;
  RunControl silent = rank.control;
  silent.events = nullptr;
  plan_with(rank.options, decision, silent, rank.group, [](const run::MeasuringStep&) {});
}

void open(Rank& rank, Json decision, Claim& claim) {
  const auto phase = rank.times.measure("open");
  claim.earlier = run::earlier_run(rank);
  check_budget(rank, decision);
  setup::RunSetup setup = setup::set_up(
      rank.options, rank.group, rank.control,
      [&](const setup::RunSetup& opened) { return run::decide(rank, opened, claim.calibration); }, std::move(decision));
  if (claim.earlier.threads) setup.threads = setup::set_threads(*claim.earlier.threads);
  require_layout(setup);
  claim.settled = run::settle(std::move(setup), rank.options, rank.group, rank.control);
  claim.division = setup::agree_on_data(rank.options.dataset_split, rank.group);
  claim.folder = std::make_unique<RunFolder>(rank.options, claim.setup(), rank.group);
}

/// The identity without data and plan.
setup::RunIdentity identity_of(const OneshotOptions& options, const Claim& claim) {
  setup::RunIdentity identity = run::identity_of(options, claim.setup());
  identity.options["dataset-split"] = claim.division.split;
  return identity;
}

/// Rank 0 comes first: it removes incomplete files of an earlier run, and its journal makes a run resumable.
template <typename Function>
void rank_0_first(dist::Group& group, Function&& function) {
  if (!group.is_first()) group.barrier();
  function();
  if (group.is_first()) group.barrier();
}

int shard_sets(const Rank& rank, const Claim& claim) {
  return claim.earlier.shard_sets > 0 ? claim.earlier.shard_sets : rank.group.size();
}

std::unique_ptr<OutputWriter> open_output(const Rank& rank, const Claim& claim, const run::Calibration& calibration) {
  const setup::RunSetup& setup = claim.setup();
  const OutputWriter::Options options{.directory = claim.folder->path(),
                                      .max_shard_bytes = parse_bytes(rank.options.max_shard_size, "--max-shard-size"),
                                      .reopen = claim.folder->continued(),
                                      .rank = rank.group.rank(),
                                      .ranks = rank.group.size(),
                                      .shard_sets = shard_sets(rank, claim),
                                      .linears_first = !setup.pipeline->takes_data,
                                      .importance = {{rank.options.dataset},
                                                     static_cast<std::uint32_t>(calibration.all_samples),
                                                     static_cast<std::uint32_t>(rank.options.max_seq_length)}};
  std::unique_ptr<OutputWriter> output;
  rank_0_first(rank.group, [&] {
    if (rank.group.is_first() && !claim.earlier.same_ranks) OutputWriter::remove_scratch(options.directory);
    output = std::make_unique<OutputWriter>(setup, options);
  });
  return output;
}

/// The planned run and its output files.
struct Planned {
  std::unique_ptr<OutputWriter> output;
  run::Work work;
};

/// Plans the part of the run that an earlier one did not finish.
void choose_plan(Rank& rank, const Claim& claim, const data::CalibrationSet& set, Planned& planned) {
  run::Work& work = planned.work;
  plan::PlanInput input{.run = claim.setup(), .samples = plan::shapes_of(set)};
  input.batch_tokens = claim.earlier.batch_tokens > 0 ? claim.earlier.batch_tokens : rank.options.batch_tokens;
  input.owns = own_linears(claim.setup(), rank.group, shard_sets(rank, claim));
  if (work.resumed_subgraphs > 0) {
    input.finished = planned.output->finished();
    // Other pipelines either read nothing from finished subgraphs or calibrate on the original weights.
    if (claim.setup().pipeline->layer_by_layer) {
      run::Leftovers leftovers = run::find_leftovers(rank, *claim.folder, *planned.output, input);
      input.mapped = [&weights = *leftovers.weights](const std::string& name) { return weights.is_original(name); };
      input.available = std::move(leftovers.available);
      work.weights = std::move(leftovers.weights);
      work.store = std::move(leftovers.store);
    }
  }
  run::release_memory(rank);
  work.plan = plan::agreed_plan(input, rank.group);
}

/// The journals of all ranks begin with the identity of the run, which includes the plan.
void start_journal(const Rank& rank, const Claim& claim, const Planned& planned, setup::RunIdentity identity) {
  std::vector<int> threads;
  for (const at::Tensor& other : rank.group.all_gather(at::full({1}, planned.work.setup.threads, at::kInt)))
    threads.push_back(other.item<int>());
  identity.plan = {
      {"ranks", rank.group.size()}, {"threads", threads}, {"batch_tokens", planned.work.plan.batch_tokens}};
  rank_0_first(rank.group, [&] { planned.output->start_journal(identity.to_json()); });
  if (rank.group.is_first())
    claim.folder->write_run(setup::identity_of_result(std::move(identity), claim.setup().model).to_json());
}

Planned plan_work(Rank& rank, const Claim& claim, const run::Calibration& calibration,
                  const setup::RunIdentity& identity) {
  const auto phase = rank.times.measure("plan");
  rank.control.step(0, claim.setup().subgraphs.size(), "plan");
  Planned planned{
      .output = nullptr,
      .work = {.setup = claim.setup(), .all_tokens = calibration.all_tokens, .all_samples = calibration.all_samples}};
  if (!claim.folder->journal().empty()) {
    planned.output = open_output(rank, claim, calibration);
    planned.work.resumed_subgraphs = run::accept_finished(rank, claim.setup(), *claim.folder, *planned.output);
    rank.control.step(planned.work.resumed_subgraphs, claim.setup().subgraphs.size(), "plan");
  }
  choose_plan(rank, claim, calibration.set, planned);
  run::announce(rank, planned.work, run::compressed_words(rank.options, claim.setup()), rank.options.output);
  output::require_scratch_space(claim.setup(), planned.work.plan, claim.folder->scratch(),
                                rank.options.offload_dir.empty(), rank.group, rank.control);
  run::make_batches(calibration.set, claim.folder->scratch(), planned.work);
  if (!planned.output) planned.output = open_output(rank, claim, calibration);
  start_journal(rank, claim, planned, identity);
  return planned;
}

/// Takes the data that the choice of experts has loaded, or loads it.
run::Calibration take_calibration(Rank& rank, Claim& claim) {
  const bool is_loaded = claim.calibration && claim.setup().pipeline->takes_data;
  run::Calibration calibration =
      is_loaded ? std::move(*claim.calibration) : run::load_calibration(rank, claim.setup(), claim.division);
  claim.calibration.reset();
  return calibration;
}

/// Whether --resume finds the finished output of this run.
bool is_complete(Rank& rank, Claim& claim) {
  if (!claim.folder->is_complete()) return false;
  setup::RunIdentity identity = identity_of(rank.options, claim);
  claim.calibration = take_calibration(rank, claim);
  identity.dataset = claim.calibration->identity;
  return run::is_result_of(rank, identity, claim.setup().model);
}

/// Reads the data, compares it with an earlier run's and makes batches of it. The data itself is freed at the end. The
/// cheap comparison of everything else comes first.
Planned prepare(Rank& rank, Claim& claim) {
  setup::RunIdentity identity = identity_of(rank.options, claim);
  run::require_same_run_but_data(rank, *claim.folder, identity);
  const run::Calibration calibration = take_calibration(rank, claim);
  identity.dataset = calibration.identity;
  run::require_same_run(rank, *claim.folder, identity);
  return plan_work(rank, claim, calibration, identity);
}

/// The unfinished folder removes itself; a scratch file elsewhere must be removed here.
void discard(const RunFolder& folder) {
  if (!folder.continued()) folder.remove_scratch();  // otherwise the file belongs to an earlier run and stays
}

void keep_or_discard(RunFolder& folder, const OutputWriter& output) {
  if (output.records().empty())
    discard(folder);
  else
    folder.keep();
}

/// The message for a run that was stopped on request.
std::string interruption(const Claim& claim, const OutputWriter& output) {
  if (output.records().empty()) return "stopped on request; no subgraph was finished, so nothing is kept";
  return fmt::format("stopped on request; {} of {} subgraphs are done, continue with {}--resume",
                     output.records().size(), claim.setup().subgraphs.size(),
                     claim.options.overwrite ? "--overwrite " : "");
}

/// Does the work. If it fails, finished subgraphs are kept for another run, provided that one can continue.
OneshotSummary carry_out(Rank& rank, const Claim& claim, Planned& planned) {
  OutputWriter& output = *planned.output;
  try {
    const std::uint64_t spilled_bytes = run::compress(rank, planned.work, output);
    return run::publish(rank, planned.work, spilled_bytes, *claim.folder, output);
  } catch (const InterruptedError&) {
    keep_or_discard(*claim.folder, output);
    throw InterruptedError("{}", interruption(claim, output));
  } catch (const DamagedWeightsError&) {
    discard(*claim.folder);  // a different model is needed, for which this run's results are useless
    throw;
  } catch (const RecipeError&) {
    discard(*claim.folder);
    throw;
  } catch (...) {
    keep_or_discard(*claim.folder, output);
    throw;
  }
}

/// A whole run of one rank, from options to the finished folder. `decision`: as RunSetup::decision.
OneshotSummary go_through(Rank& rank, Json decision, Claim& claim) {
  const c10::InferenceMode inference;
  open(rank, std::move(decision), claim);
  if (is_complete(rank, claim)) return run::already_complete(rank);
  parse_bytes(rank.options.max_shard_size, "--max-shard-size");  // refuses bad values before a folder is created
  claim.folder->open();
  if (rank.options.resume && claim.folder->journal().empty() && !output::MeasurementLog::is_there(rank.options.output))
    rank.control.message(
        LogLevel::kWarning,
        fmt::format("[output] --resume: {} has {}; starting from the beginning", rank.options.output,
                    claim.folder->continued() ? "an unfinished run whose journal is damaged" : "no unfinished run"));
  Planned planned = prepare(rank, claim);
  run::say_notes(rank.options, claim.setup(), rank.control);
  run::say_source(rank, claim.setup());
  return carry_out(rank, claim, planned);
}

}  // namespace

OneshotSummary oneshot(const OneshotOptions& given, const RunControl& control, Distributed* ranks) {
  dist::Group alone;
  dist::Group& group = ranks != nullptr ? *ranks : alone;
  const RunControl own = run::control_of(control, group);
  Claim claim;  // outlives the message to the other ranks, which write into its folder until then
  return run::run_together(group, [&] {
    const OneshotOptions options = recipe::with_mixed_precision(given);
    if (options.output.empty()) throw UsageError("[options] --output is required");
    setup::require_same_start(options, /*is_plan=*/false, group);
    run::check_upload(options, group, own);
    run::require_own_files(options);
    run::check_report(options);
    run::fetch_model(options, group, own);
    const Timer timer;  // a download does not count
    run::MixedPrecision chosen{.options = options, .decision = nullptr};
    std::uint64_t measuring_bytes = 0;
    if (run::asks_for_mixed_precision(options)) {
      MemorySampler sampler;
      chosen = run::choose_as_given(given, [&] { return run::choose_precision(options, own, group, /*writes=*/true); });
      measuring_bytes = sampler.peak_bytes();
      return_freed_memory();  // which the plan of the run would count as the process's own
    }
    claim.options = std::move(chosen.options);
    Rank rank{claim.options, own, group, timer};
    rank.earlier_peak_bytes = measuring_bytes;
    rank.earlier_planned_bytes = chosen.planned_bytes;
    OneshotSummary summary = go_through(rank, std::move(chosen.decision), claim);
    run::write_report(options, group, own, summary);
    run::upload(options, group, own, summary);
    return summary;
  });
}

Json plan_oneshot(const OneshotOptions& given, const RunControl& control, Distributed* ranks) {
  dist::Group alone;
  dist::Group& group = ranks != nullptr ? *ranks : alone;
  return run::run_together(group, [&] {
    OneshotOptions options = recipe::with_mixed_precision(given);
    const RunControl own = run::control_of(control, group);
    setup::require_same_start(options, /*is_plan=*/true, group);
    run::fetch_model(options, group, own);
    Json decision, measurement = Json::array();
    if (run::asks_for_mixed_precision(options)) {
      run::PlannedPrecision planned =
          run::choose_as_given(given, [&] { return run::plan_precision(options, own, group); });
      options = std::move(planned.assumed.options);
      decision = std::move(planned.assumed.decision);
      measurement = std::move(planned.steps);
    }
    const auto on_step = [&](const run::MeasuringStep& step) {
      measurement.push_back(run::report_of(step, options.model));
    };
    const PlannedRun planned = plan_with(options, std::move(decision), own, group, on_step);
    Json report = plan::plan_report(
        *planned.settled.setup, planned.plan,
        plan::measure_rates(*planned.settled.setup, options.output.empty() ? options.model : options.output));
    add_measurement(measurement.empty() ? Json() : std::move(measurement), report);
    group.barrier();
    return report;
  });
}

}  // namespace layerpress
