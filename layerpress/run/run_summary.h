#pragma once

#include "layerpress/base/phase_times.h"
#include "layerpress/dist/group.h"
#include "layerpress/plan/run_plan.h"

namespace layerpress::run {

/// What one rank has to say of itself at the end.
struct RankReport {
  double seconds = 0;
  std::uint64_t peak_anonymous_bytes = 0;
  std::uint64_t peak_device_bytes = 0;
  std::uint64_t spilled_bytes = 0;
  const PhaseTimes& times;
  const plan::RunPlan& plan;
  std::vector<compression::ModuleReport> modules;  ///< those that this rank writes
};

/// What a run did, as --summary writes it; rank 0's figures at the top, every rank's under "ranks". On other ranks than the first
/// it is null. Collective.
Json run_summary(const OneshotOptions& options, const setup::RunSetup& setup, const RankReport& report,
                 dist::Group& group);

}  // namespace layerpress::run
