#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "layerpress/plan/memory_plan.h"
#include "layerpress/setup/run_setup.h"

namespace layerpress::plan {

/// What a plan has to know of a sample.
struct SampleShape {
  std::int64_t tokens = 0;
  std::vector<std::int64_t> filled_tiles = {};  ///< of each of its images
};
std::vector<SampleShape> shapes_of(const data::CalibrationSet& set);

/// What is given when a run is planned.
struct PlanInput {
  const setup::RunSetup& run;
  std::vector<SampleShape> samples;                  ///< this rank's; empty without data
  std::vector<bool> finished{};                      ///< subgraphs done by an earlier run (empty: none)
  std::vector<graph::ValueId> available{};           ///< values that are stored already
  std::function<bool(const std::string&)> mapped{};  ///< whether a weight is used where it lies in the checkpoint
  std::int64_t batch_tokens = 0;                     ///< 0: chosen
  dist::DivisionRates division_rates{};
  std::function<bool(graph::NodeId)> owns{};  ///< without data: whether this rank compresses a linear (empty: all)
};

/// How a run is done.
struct RunPlan {
  std::int64_t batch_tokens = 0;
  std::vector<execution::Batch> batches;  ///< as batches_of makes them
  std::vector<schedule::SubgraphSchedule> schedule;
  std::uint64_t activation_limit = std::numeric_limits<std::uint64_t>::max();
  at::Device activation_home = at::kCPU;  ///< where values between stages live that are in memory
  MemoryPlan memory;
  std::uint64_t smallest_budget = 0;  ///< with the same options, in whole MiB
};

/// Chooses batches, where values live and what is computed again so that the run stays inside the budgets and takes little
/// time. Throws MemoryError when no choice fits, naming the smallest budget that does and what else would help.
RunPlan plan_run(const PlanInput& input);

/// Host memory that the process holds beside what a plan counts: now, and what its libraries add once they work in `dtype`.
std::uint64_t process_baseline(setup::Pipeline pipeline, const graph::Graph& graph);

/// Packs samples into batches as make_batches does for the model that `graph` is, without what is in them: numbers of tokens, of
/// images and of tiles.
std::vector<execution::Batch> batches_of(const std::vector<SampleShape>& samples, std::int64_t batch_tokens,
                                         const graph::Graph& graph);

}  // namespace layerpress::plan
