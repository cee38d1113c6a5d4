#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "layerpress/recipe/open_model.h"
#include "layerpress/runtime/memory_plan.h"

namespace layerpress::recipe {

enum class Pipeline { kSequential, kBasic, kDatafree };

/// Where values between stages live: on the computing device if all of them fit there, else in host memory while the budget lasts
/// and then on disk (kAuto); in host memory (kCpu), in the scratch file (kDisk), on the computing device (kNone).
enum class ActivationPlace { kAuto, kCpu, kDisk, kNone };

ActivationPlace parse_activation_place(const std::string& name);

/// What a plan has to know of a sample.
struct SampleShape {
  std::int64_t tokens = 0;
  std::vector<std::int64_t> filled_tiles = {};  ///< of each of its images
};
std::vector<SampleShape> shapes_of(const data::CalibrationSet& set);

/// What is given when a run is planned.
struct PlanInput {
  const OpenedModel& model;
  const runtime::Assignments& assignments;
  const std::vector<graph::Subgraph>& subgraphs;
  Pipeline pipeline = Pipeline::kSequential;
  runtime::Placement placement;
  ActivationPlace place = ActivationPlace::kAuto;
  std::vector<SampleShape> samples;                  ///< empty without data
  std::vector<bool> finished{};                      ///< subgraphs done by an earlier run (empty: none)
  std::vector<graph::ValueId> available{};           ///< values that are stored already
  std::function<bool(const std::string&)> mapped{};  ///< whether a weight is used where it lies in the checkpoint
  std::int64_t batch_tokens = 0;                     ///< 0: chosen
  std::uint64_t budget = 0;                          ///< of host memory, in all
  std::uint64_t device_budget = std::numeric_limits<std::uint64_t>::max();
  int threads = 1;
  int ranks = 1;  ///< that divide the work; samples are this rank's
  runtime::DivisionRates division_rates{};
  std::function<bool(graph::NodeId)> owns{};  ///< without data: whether this rank compresses a linear (empty: all)
};

/// How a run is done.
struct RunPlan {
  std::int64_t batch_tokens = 0;
  std::vector<runtime::Batch> batches;  ///< as batches_of makes them
  std::vector<runtime::SubgraphSchedule> schedule;
  std::uint64_t activation_limit = std::numeric_limits<std::uint64_t>::max();
  at::Device activation_home = at::kCPU;  ///< where values between stages live that are in memory
  runtime::MemoryPlan memory;
  std::uint64_t smallest_budget = 0;  ///< with the same options, in whole MiB
};

/// Chooses batches, where values live and what is computed again so that the run stays inside the budgets and takes little
/// time. Throws MemoryError when no choice fits, naming the smallest budget that does and what else would help.
RunPlan plan_run(const PlanInput& input);

/// Host memory that the process holds beside what a plan counts: now, and what its libraries add once they work in `dtype`.
std::uint64_t process_baseline(Pipeline pipeline, at::ScalarType dtype, const graph::Graph& graph);

/// Packs samples into batches as make_batches does for the model that `graph` is, without what is in them: numbers of tokens, of
/// images and of tiles.
std::vector<runtime::Batch> batches_of(const std::vector<SampleShape>& samples, std::int64_t batch_tokens,
                                       const graph::Graph& graph);

}  // namespace layerpress::recipe
