#include "layerpress/run/compression/compression_run.h"

#include <algorithm>
#include <utility>

#include "layerpress/base/system/machine.h"
#include "layerpress/pipeline/schedule_runner.h"
#include "layerpress/pipeline/sinks/background_sink.h"
#include "layerpress/residency/device_memory.h"
#include "layerpress/residency/host_copies.h"

namespace layerpress::run {
namespace {

/// Returns how many bytes went to disk.
std::uint64_t run_schedule(const execution::RunContext& run, Work& work, pipeline::ResultSink& sink) {
  const at::Device device = work.setup.placement.device;
  const plan::RunPlan& plan = work.plan;
  // The store is destroyed before its file is removed.
  const std::unique_ptr<residency::ActivationStore> own_store = std::move(work.store);
  residency::ActivationStore& store = *own_store;
  store.limit_memory(plan.activation_limit);
  store.live_on(plan.activation_home);
  if (plan.activation_home.is_cpu()) store.copy_by(residency::host_copies(device));
  if (device.is_cpu()) {
    pipeline::run_schedule(run, plan.schedule, work.setup.assignments, store, sink);
  } else {
    pipeline::BackgroundSink results(sink, residency::host_copies(device));
    pipeline::run_schedule(run, plan.schedule, work.setup.assignments, store, results);
    results.finish();
  }
  return store.spilled_bytes();
}

}  // namespace

void limit_memory(Rank& rank, const setup::RunSetup& setup, const plan::RunPlan& plan) {
  const std::uint64_t now = plan::process_baseline(*setup.pipeline, setup.model.traced.graph);
  const std::uint64_t process = now - std::min(now, rank.memory.used_bytes());
  const std::uint64_t peak = plan.memory.peak.host;
  residency::restart_peak_device_bytes(setup.placement.device);
  rank.memory.limit(peak - std::min(peak, process));
}

void release_memory(Rank& rank) {
  rank.memory.limit(0);
  return_freed_memory();
}

void make_batches(const data::CalibrationSet& set, const std::filesystem::path& scratch, Work& work) {
  if (set.sample_count() > 0)
    work.batches = setup::make_batches(set, work.plan.batch_tokens, work.setup.model.traced.graph);
  if (work.store) return;
  residency::ActivationStore::Options options;
  options.scratch = scratch;
  work.store = std::make_unique<residency::ActivationStore>(work.batches.size(), std::move(options));
}

std::uint64_t compress(Rank& rank, Work& work, pipeline::ResultSink& sink) {
  const setup::RunSetup& setup = work.setup;
  limit_memory(rank, setup, work.plan);
  if (!work.weights) work.weights = setup.model.weights();
  const auto original = setup.model.weights();
  const execution::RunContext run{.graph = setup.model.traced.graph,
                                  .weights = *work.weights,
                                  .placement = setup.placement,
                                  .batches = work.batches,
                                  .control = rank.control,
                                  .times = rank.times,
                                  .group = rank.group,
                                  .division_rates = setup.division_rates,
                                  .all_tokens = work.all_tokens,
                                  .min_tokens_per_expert = setup.min_tokens_per_expert,
                                  .original = original.get(),
                                  .all_samples = work.all_samples};
  return run_schedule(run, work, sink);
}

}  // namespace layerpress::run
