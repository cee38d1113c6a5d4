#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "layerpress/plan/memory_plan.h"
#include "layerpress/setup/run_setup.h"

namespace layerpress::plan {

/// The properties of a sample that a plan needs.
struct SampleShape {
  std::int64_t tokens = 0;
  std::vector<std::int64_t> filled_tiles = {};  ///< of each of its images
  std::optional<std::int64_t> counted = {};     ///< tokens that count in statistics; nothing: all
};
std::vector<SampleShape> shapes_of(const data::CalibrationSet& set);

/// The input of a run's plan.
struct PlanInput {
  const setup::RunSetup& run;
  std::vector<SampleShape> samples;                  ///< this rank's; empty without data
  std::vector<bool> finished{};                      ///< subgraphs done by an earlier run (empty: none)
  std::vector<graph::ValueId> available{};           ///< values that are already stored
  std::function<bool(const std::string&)> mapped{};  ///< whether a weight is used directly from the mapped checkpoint
  std::int64_t batch_tokens = 0;                     ///< 0: chosen
  dist::DivisionRates division_rates{};
  std::function<bool(graph::NodeId)> owns{};  ///< without data: whether this rank compresses a linear (empty: all)
};

/// How a run is done.
struct RunPlan {
  std::int64_t batch_tokens = 0;
  std::vector<execution::Batch> batches;  ///< as from batches_of
  std::vector<schedule::SubgraphSchedule> schedule;
  std::uint64_t activation_limit = std::numeric_limits<std::uint64_t>::max();
  at::Device activation_home = at::kCPU;  ///< device of values between stages that are in memory
  MemoryPlan memory;
  std::uint64_t smallest_budget = 0;  ///< with the same options, in whole MiB
};

/// Chooses batches, places of values and recomputation so that the run stays within its budgets and is fast. Throws
/// MemoryError if no choice fits, naming the smallest budget that works and other remedies.
RunPlan plan_run(const PlanInput& input);

/// Host memory that the process holds beside what a plan counts: now, and what its libraries add while they work.
std::uint64_t process_baseline(setup::Pipeline pipeline, const graph::Graph& graph);

/// Packs samples into batches like make_batches, but without contents: only numbers of tokens, images and tiles.
std::vector<execution::Batch> batches_of(const std::vector<SampleShape>& samples, std::int64_t batch_tokens,
                                         const graph::Graph& graph);

}  // namespace layerpress::plan
