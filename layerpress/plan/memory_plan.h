#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "layerpress/execution/stage_runner.h"
#include "layerpress/schedule/schedule.h"

namespace layerpress::plan {

/// Bytes on the host and on the computing device; on a CPU device everything is on the host. Only memory that the kernel
/// cannot drop counts: mapped weights and mapped scratch pages do not.
struct Memory {
  std::uint64_t host = 0;
  std::uint64_t device = 0;
};

/// What one subgraph needs. Every number is the largest during the subgraph unless it says otherwise.
struct SubgraphPlan {
  std::string name;
  std::string mode = "store";               ///< "store", "recompute", or "replay" (finished, run again for later ones)
  std::uint64_t weight_bytes = 0;           ///< of its weights as stored: what is mapped, or moved to the device
  std::uint64_t onloaded_bytes = 0;         ///< weights held beside the map: compressed ones, copies in another dtype
  std::uint64_t activation_bytes = 0;       ///< values between stages, in memory
  std::uint64_t activation_disk_bytes = 0;  ///< values between stages, in the scratch file
  std::uint64_t transient_bytes = 0;        ///< values and workspaces inside a stage, for one batch
  std::uint64_t gram_bytes = 0;             ///< Gram matrices
  std::uint64_t workspace_bytes = 0;        ///< of the modifiers, results included
  Memory peak;                              ///< everything at the worst moment, the process itself included
  std::map<std::string, double> flops;      ///< by phase, in all
  double forward_bytes = 0;                 ///< values that norms, activations and sums read and write, in all
  std::uint64_t read_bytes = 0;             ///< weights and spilled values read, in all
  std::uint64_t written_bytes = 0;          ///< results and spilled values written, in all
};

struct MemoryPlan {
  std::vector<SubgraphPlan> subgraphs;
  Memory peak;
  std::uint64_t spilled_bytes = 0;  ///< written to the scratch file, in all
};

/// What a plan is made from. Batches need offsets only, no tokens.
struct PlanRequest {
  const graph::Graph& graph;
  const compression::Assignments& assignments;
  const std::vector<execution::Batch>& batches;
  residency::Placement placement;
  at::Device activation_home = at::kCPU;
  /// Memory for values between stages; more goes to the scratch file.
  std::uint64_t activation_limit = std::numeric_limits<std::uint64_t>::max();
  std::function<at::ScalarType(const std::string& weight)> stored_dtype;  ///< in the checkpoint
  /// Whether a weight can be used where it lies in the checkpoint, if its dtype is the computing one (empty: all can).
  std::function<bool(const std::string& weight)> mapped;
  std::uint64_t baseline = 0;  ///< host memory that the process holds beside everything planned here
  int threads = 1;
  int ranks = 1;  ///< that divide the work; batches are this rank's
  dist::DivisionRates division_rates{};
  std::function<bool(graph::NodeId)> owns;  ///< without data: whether this rank compresses a linear (empty: all)
};

MemoryPlan plan_sequential(const PlanRequest& request, const std::vector<schedule::SubgraphSchedule>& schedule);
/// As run_basic and run_datafree do it; `finished` as there.
MemoryPlan plan_basic(const PlanRequest& request, const std::vector<graph::Subgraph>& subgraphs,
                      const std::vector<bool>& finished);
MemoryPlan plan_datafree(const PlanRequest& request, const std::vector<graph::Subgraph>& subgraphs,
                         const std::vector<bool>& finished);

}  // namespace layerpress::plan
