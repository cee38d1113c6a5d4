#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "layerpress/dist/group.h"
#include "layerpress/plan/memory_plan.h"
#include "layerpress/plan/plan_input.h"

namespace layerpress::plan {

inline constexpr std::uint64_t kMebibyte = 1u << 20;

/// How a run is done.
struct RunPlan {
  std::int64_t batch_tokens = 0;
  std::vector<execution::Batch> batches;  ///< as from batches_of
  schedule::Schedule schedule;
  std::uint64_t activation_limit = std::numeric_limits<std::uint64_t>::max();
  at::Device activation_home = at::kCPU;  ///< device of values between stages that are in memory
  MemoryPlan memory;
  std::uint64_t spare = 0;            ///< part of the peak: freed memory that stays at hand for the next tensors
  std::uint64_t smallest_budget = 0;  ///< with the same options, in whole MiB
};

/// Chooses batches, places of values and recomputation so that the run stays within its budgets and is fast. Throws
/// MemoryError if no choice fits, naming the smallest budget that works and other remedies.
RunPlan plan_run(const PlanInput& input);

/// The plan of plan_run() with batches of a size that fits all ranks, because the order of summation depends on it.
/// Collective.
RunPlan agreed_plan(PlanInput& input, dist::Group& group);

/// Host memory that the process holds beside what a plan counts: now, and what its libraries add while they work.
std::uint64_t process_baseline(const schedule::Pipeline& pipeline, const graph::Graph& graph);

/// Packs samples into batches like make_batches, but without contents: only numbers of tokens, images and tiles.
std::vector<execution::Batch> batches_of(const std::vector<SampleShape>& samples, std::int64_t batch_tokens,
                                         const graph::Graph& graph);

}  // namespace layerpress::plan
