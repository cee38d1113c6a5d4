#include "layerpress/run/decisions/measuring_run.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>
#include <utility>

#include "layerpress/base/files/temporary_directory.h"
#include "layerpress/base/text.h"
#include "layerpress/output/run_folder.h"
#include "layerpress/output/scratch_space.h"
#include "layerpress/pipeline/sinks/report_sink.h"
#include "layerpress/plan/machine_rates.h"
#include "layerpress/run/compression/compression_run.h"
#include "layerpress/run/compression/earlier_run.h"
#include "layerpress/run/results/announcement.h"

namespace layerpress::run {
namespace {

/// Of the log: what an interrupted run has measured in the output errors' pass.
constexpr const char* kModules = "modules";

using Reports = pipeline::ReportSink::Reports;

/// What an earlier run has done.
struct Earlier {
  std::vector<bool> finished{};  // subgraphs; empty: none
  Reports reports{};
  std::int64_t batch_tokens = 0;  // 0: not decided
};

/// Subgraphs in order, up to the first one without a record.
Earlier earlier_in(const setup::RunSetup& setup, const dist::Group& group, const output::MeasurementLog& log) {
  Earlier earlier;
  earlier.finished.assign(setup.subgraphs.size(), false);
  std::size_t next = 0;
  for (const Json& record : log.found(kModules)) {
    if (next == setup.subgraphs.size() || json_get<std::size_t>(record, "index", "measurement") != next) break;
    earlier.finished[next++] = true;
    for (const Json& report : json_get<std::vector<Json>>(record, "reports", "measurement"))
      earlier.reports.push_back(compression::ModuleReport::from_json(report));
    if (json_get<int>(record, "ranks", "measurement") == group.size())
      earlier.batch_tokens = json_get<std::int64_t>(record, "batch_tokens", "measurement");
  }
  return earlier;
}

Earlier earlier_of(const setup::RunSetup& setup, const dist::Group& group, const output::MeasurementLog& log) {
  try {
    return earlier_in(setup, group, log);
  } catch (const CheckpointError& error) {
    log.refuse(error.what());
  }
}

/// The plan and the batches.
Work prepare_work(Rank& rank, const setup::RunSetup& setup, const std::string& what, const TemporaryDirectory& folder,
                  const Calibration& calibration, const Earlier& earlier) {
  const auto phase = rank.times.measure("plan");
  rank.control.step(0, setup.subgraphs.size(), "plan");
  Work work{.setup = setup, .all_tokens = calibration.all_tokens, .all_samples = calibration.all_samples};
  plan::PlanInput input{.run = setup,
                        .samples = plan::shapes_of(calibration.set),
                        .finished = earlier.finished,
                        .batch_tokens = earlier.batch_tokens > 0 ? earlier.batch_tokens : rank.options.batch_tokens};
  release_memory(rank);
  work.plan = plan::agreed_plan(input, rank.group);
  announce(rank, work, what, folder.path());
  const std::filesystem::path scratch =
      setup::may_use_disk(setup.place) ? folder.path() / "activations" : std::filesystem::path();
  output::require_scratch_space(setup, work.plan, scratch, /*shared=*/false, rank.group, rank.control);
  make_batches(calibration.set, scratch, work);
  return work;
}

/// Every linear must have one, because an earlier run's come from a file.
void require_all(const setup::RunSetup& setup, const Reports& reports, const output::MeasurementLog& log) {
  std::set<std::string> missing;
  for (const auto& [node, assignment] : setup.assignments.linears)
    missing.insert(setup.model.traced.graph.module_name(setup.model.traced.graph.nodes[node]));
  for (const compression::ModuleReport& report : reports)
    if (missing.erase(report.module) == 0 || report.figures.size() != reports.front().figures.size())
      log.refuse("what it says of " + report.module);
  if (!missing.empty()) log.refuse("it says nothing of " + *missing.begin());
}

Measurement measured(Rank& rank, Work& work, Earlier earlier, output::MeasurementLog& log) {
  const std::int64_t batch_tokens = work.plan.batch_tokens;
  pipeline::ReportSink sink(std::move(earlier.reports), [&](std::size_t index, const auto& reports) {
    Json all = Json::array();
    for (const compression::ModuleReport& report : reports) all.push_back(report.to_json());
    log.add(
        kModules,
        {{"index", index}, {"reports", std::move(all)}, {"batch_tokens", batch_tokens}, {"ranks", rank.group.size()}});
  });
  try {
    compress(rank, work, sink);
  } catch (const InterruptedError&) {
    throw InterruptedError("{}", interruption(log));
  }
  rank.group.barrier();  // what one rank finds wrong late, all ranks learn
  return {work.all_samples, work.all_tokens, work.plan.memory.peak.host, sink.reports()};
}

}  // namespace

void require_output(const OneshotOptions& options, const setup::RunSetup& setup, dist::Group& group) {
  const output::RunFolder folder(options, setup, group);
  if (!group.is_first() || options.resume || options.overwrite) return;
  if (const auto found = find_unfinished_run(options.output))
    output::RunFolder::refuse_unfinished(options.output, *found);
  if (output::MeasurementLog::is_there(options.output))
    throw UsageError(
        "[output] {}: an earlier run did not finish what it measures first; continue it with --resume or start over "
        "with --overwrite",
        options.output);
  PendingDirectory::require_free(options.output, !setup.target->only_file().empty());
}

void require_memory(const plan::RunPlan& plan, const setup::RunSetup& setup, const char* what) {
  const plan::Memory& peak = plan.memory.peak;
  if (peak.host > setup.budget)
    throw MemoryError(
        "[plan] {} MiB of memory may be used{}, but measuring {} needs at least {} MiB; raise --memory-budget",
        setup.budget / plan::kMebibyte, setup.ranks > 1 ? " by each rank" : "", what,
        plan.smallest_budget / plan::kMebibyte);
  if (peak.device > setup.device_budget)
    throw MemoryError(
        "[plan] measuring {} needs {} on the device, but only {} may be used; raise --device-memory-budget", what,
        format_bytes(peak.device), format_bytes(setup.device_budget));
}

Json report_of(const MeasuringStep& step, const std::string& model) {
  const plan::MachineRates rates = plan::measure_rates(step.setup, model);
  double seconds = 0;
  for (const plan::SubgraphPlan& subgraph : step.plan.memory.subgraphs)
    seconds += plan::estimated_seconds(subgraph, rates);
  return {{"name", step.name},
          {"peak_bytes", step.plan.memory.peak.host},
          {"device_peak_bytes", step.plan.memory.peak.device},
          {"smallest_budget_bytes", step.plan.smallest_budget},
          {"seconds", seconds}};
}

Measurement measure(Rank& rank, const setup::RunSetup& setup, const std::string& what, const Calibration& calibration) {
  const TemporaryDirectory folder(rank.options.offload_dir);
  Work work = prepare_work(rank, setup, what, folder, calibration, {});
  output::MeasurementLog none(rank.group);
  return measured(rank, work, {}, none);
}

Measurement measure(Rank& rank, const setup::RunSetup& setup, const std::string& what, Calibration&& calibration,
                    output::MeasurementLog& log) {
  std::optional<Calibration> owned(std::move(calibration));
  Earlier earlier = earlier_of(setup, rank.group, log);
  const TemporaryDirectory folder(rank.options.offload_dir);
  const auto done = static_cast<std::size_t>(std::count(earlier.finished.begin(), earlier.finished.end(), true));
  if (done > 0)
    rank.control.message(LogLevel::kInfo,
                         fmt::format("{} of {} subgraphs are measured already", done, setup.subgraphs.size()));
  Work work = prepare_work(rank, setup, what, folder, *owned, earlier);
  owned.reset();
  Measurement measurement = measured(rank, work, std::move(earlier), log);
  require_all(setup, measurement.reports, log);
  return measurement;
}

output::MeasurementLog open_log(const Rank& rank, const setup::RunSetup& setup, const Calibration& calibration) {
  setup::RunIdentity identity = identity_of(rank.options, setup);
  identity.dataset = calibration.identity;
  return {rank.options, identity, rank.group};
}

std::string interruption(const output::MeasurementLog& log) {
  return log.keeps_any() ? "stopped on request while measuring; continue with --resume"
                         : "[run] stopped on request; a measuring run keeps nothing";
}

}  // namespace layerpress::run
