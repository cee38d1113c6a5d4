#include "layerpress/run/decisions/measuring_run.h"

#include <filesystem>
#include <optional>
#include <utility>

#include "layerpress/base/files/temporary_directory.h"
#include "layerpress/output/scratch_space.h"
#include "layerpress/pipeline/sinks/report_sink.h"
#include "layerpress/run/compression/compression_run.h"
#include "layerpress/run/results/announcement.h"

namespace layerpress::run {
namespace {

/// The plan and the batches.
Work prepare_work(Rank& rank, const setup::RunSetup& setup, const std::string& what, const TemporaryDirectory& folder,
                  const Calibration& calibration) {
  const auto phase = rank.times.measure("plan");
  rank.control.step(0, setup.subgraphs.size(), "plan");
  Work work{.setup = setup, .all_tokens = calibration.all_tokens, .all_samples = calibration.all_samples};
  plan::PlanInput input{
      .run = setup, .samples = plan::shapes_of(calibration.set), .batch_tokens = rank.options.batch_tokens};
  work.plan = plan::agreed_plan(input, rank.group);
  announce(rank, work, what, folder.path());
  const std::filesystem::path scratch =
      setup::may_use_disk(setup.place) ? folder.path() / "activations" : std::filesystem::path();
  output::require_scratch_space(setup, work.plan, scratch, /*shared=*/false, rank.group, rank.control);
  make_batches(calibration.set, scratch, work);
  return work;
}

Measurement measured(Rank& rank, Work& work) {
  pipeline::ReportSink sink;
  try {
    compress(rank, work, sink);
  } catch (const InterruptedError&) {
    throw InterruptedError("[run] stopped on request; a measuring run keeps nothing");
  }
  rank.group.barrier();  // what one rank finds wrong late, all ranks learn
  return {work.all_samples, work.all_tokens, work.plan.memory.peak.host, sink.reports()};
}

}  // namespace

Measurement measure(Rank& rank, const setup::RunSetup& setup, const std::string& what, const Calibration& calibration) {
  const TemporaryDirectory folder(rank.options.offload_dir);
  Work work = prepare_work(rank, setup, what, folder, calibration);
  return measured(rank, work);
}

Measurement measure(Rank& rank, const setup::RunSetup& setup, const std::string& what, Calibration&& calibration) {
  const TemporaryDirectory folder(rank.options.offload_dir);
  std::optional<Calibration> owned(std::move(calibration));
  Work work = prepare_work(rank, setup, what, folder, *owned);
  owned.reset();
  return measured(rank, work);
}

}  // namespace layerpress::run
