#pragma once

#include <cstdint>

#include "layerpress/base/system/memory_sampler.h"
#include "layerpress/base/system/phase_times.h"
#include "layerpress/dist/group.h"
#include "layerpress/oneshot.h"
#include "layerpress/residency/host_memory.h"

namespace layerpress::run {

/// The objects that all phases of a run use on one rank.
struct Rank {
  const OneshotOptions& options;
  const RunControl& control;
  dist::Group& group;
  Timer timer{};
  PhaseTimes times{};
  MemorySampler sampler{};
  residency::HostMemory memory{};
  std::uint64_t earlier_peak_bytes = 0;     ///< of measurements before the run, see MemorySampler::peak_bytes
  std::uint64_t earlier_planned_bytes = 0;  ///< the greatest planned peak of such measurements
};

}  // namespace layerpress::run
