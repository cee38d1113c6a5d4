#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "layerpress/output/output_writer.h"
#include "layerpress/plan/run_plan.h"
#include "layerpress/residency/activation_store.h"
#include "layerpress/residency/weight_source.h"
#include "layerpress/run/rank.h"

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

/// Compresses the model into `output`, in the order that the setup names. Returns how many bytes of activations went to
/// disk. Collective.
std::uint64_t compress(Rank& rank, Work& work, output::OutputWriter& output);

}  // namespace layerpress::run
