#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "layerpress/data/calibration_set.h"
#include "layerpress/pipeline/sinks/result_sink.h"
#include "layerpress/plan/run_plan.h"
#include "layerpress/residency/activation_store.h"
#include "layerpress/residency/weight_source.h"
#include "layerpress/run/compression/rank.h"

namespace layerpress::run {

/// The input of a compression run, and how it is done.
struct Work {
  const setup::RunSetup& setup;
  plan::RunPlan plan{};
  std::vector<execution::Batch> batches{};
  std::int64_t all_tokens = 0;                         ///< of all ranks
  std::int64_t all_samples = 0;                        ///< of all ranks
  std::size_t resumed_subgraphs = 0;                   ///< that an earlier run finished
  std::unique_ptr<residency::WeightSource> weights{};  ///< null: the model's
  std::unique_ptr<residency::ActivationStore>
      store{};  ///< values between stages; may already have those of an earlier run
};

/// Gives back what is kept for later tensors, which a plan would count as the process's own.
void release_memory(Rank& rank);
/// What is kept for later tensors may take everything that the plan counts: all memory except the process's own.
void limit_memory(Rank& rank, const setup::RunSetup& setup, const plan::RunPlan& plan);

/// Makes the planned batches of the data, and the store for values between stages, unless the work has one. `scratch`: the
/// store's file; empty: none may be used.
void make_batches(const data::CalibrationSet& set, const std::filesystem::path& scratch, Work& work);

/// Goes through the model in the order that the setup names and passes the results to `sink`. Returns how many bytes of
/// activations went to disk. Collective.
std::uint64_t compress(Rank& rank, Work& work, pipeline::ResultSink& sink);

}  // namespace layerpress::run
