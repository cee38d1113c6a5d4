#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "layerpress/execution/batch.h"
#include "layerpress/plan/plan_input.h"
#include "layerpress/schedule/schedule.h"

namespace layerpress::plan {

/// Bytes on the host and on the computing device; on a CPU everything is on the host. Counts only memory that the
/// kernel cannot reclaim, so neither mapped weights nor mapped scratch pages.
struct Memory {
  std::uint64_t host = 0;
  std::uint64_t device = 0;
};

/// One pass of all batches through a stage, or through all stages of a subgraph batch by batch: a device computes, while values are copied
/// between it and the host.
struct StageLoad {
  double flops = 0;                           ///< of its nodes, without statistics
  std::uint64_t in_bytes = 0, out_bytes = 0;  ///< values that wait on the host: read, and stored
};

/// The needs of one subgraph. Numbers are maxima during the subgraph, except where noted.
struct SubgraphPlan {
  std::string name;
  std::string mode = "store";          ///< "store", "recompute", or "replay" (finished; run again for later subgraphs)
  std::uint64_t weight_bytes = 0;      ///< its weights as stored: mapped, or copied to the device
  std::uint64_t onloaded_bytes = 0;    ///< weights held in memory: compressed ones, copies in another dtype
  std::uint64_t activation_bytes = 0;  ///< values between stages, in memory
  std::uint64_t activation_disk_bytes = 0;  ///< values between stages, in the scratch file
  std::uint64_t transient_bytes = 0;        ///< values and workspaces inside a stage, for one batch
  std::uint64_t statistics_bytes = 0;       ///< Gram matrices and the like
  std::uint64_t workspace_bytes = 0;        ///< of the modifiers, results included
  Memory peak;                              ///< everything at the worst moment, the process itself included
  std::map<std::string, double> flops;      ///< by phase, in all
  double forward_bytes = 0;                 ///< values that norms, activations and sums read and write, in all
  std::uint64_t read_bytes = 0;             ///< weights and spilled values read, in all
  std::uint64_t written_bytes = 0;          ///< results and spilled values written, in all
  std::vector<StageLoad> passes;            ///< in order
};

struct MemoryPlan {
  std::vector<SubgraphPlan> subgraphs;
  Memory peak;
  std::uint64_t spilled_bytes = 0;  ///< written to the scratch file, total
};

/// One way to do a run. Refers to the run's facts.
struct PlanRequest {
  const PlanInput& input;
  const std::vector<execution::Batch>& batches;  ///< of this rank; they need only offsets, no tokens
  at::Device activation_home = at::kCPU;
  /// Memory limit for values between stages; values beyond it go to the scratch file.
  std::uint64_t activation_limit = std::numeric_limits<std::uint64_t>::max();
  std::uint64_t baseline = 0;  ///< host memory of the process besides everything planned here
};

/// Follows a schedule of any pipeline without data.
MemoryPlan plan_memory(const PlanRequest& request, const schedule::Schedule& schedule);

}  // namespace layerpress::plan
