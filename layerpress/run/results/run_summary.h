#pragma once

#include "layerpress/base/system/memory_sampler.h"
#include "layerpress/base/system/phase_times.h"
#include "layerpress/dist/group.h"
#include "layerpress/plan/run_plan.h"

namespace layerpress::run {

/// A rank's own report at the end of a run.
struct RankReport {
  double seconds = 0;
  std::uint64_t peak_anonymous_bytes = 0;
  std::uint64_t peak_device_bytes = 0;
  std::uint64_t spilled_bytes = 0;
  std::uint64_t earlier_planned_bytes = 0;  ///< the greatest planned peak of measurements before the run
  const PhaseTimes& times;
  const plan::RunPlan& plan;
  std::vector<compression::ModuleReport> modules;  ///< modules that this rank writes
  const MemoryHistory memory{};
};

/// The run's summary, as written by --summary: rank 0's figures at the top level, every rank's under "ranks". Null on
/// ranks other than the first. Collective.
Json run_summary(const OneshotOptions& options, const setup::RunSetup& setup, const RankReport& report,
                 dist::Group& group);

}  // namespace layerpress::run
