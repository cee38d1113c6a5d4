#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "layerpress/output/output_writer.h"
#include "layerpress/output/resumed_weights.h"
#include "layerpress/output/run_folder.h"
#include "layerpress/plan/run_plan.h"
#include "layerpress/residency/activation_store.h"
#include "layerpress/run/rank.h"
#include "layerpress/setup/run_identity.h"

namespace layerpress::run {

/// What an earlier run decided that continues to hold when its output is continued.
struct EarlierRun {
  int shard_sets = 0;             ///< of its files; 0: there was no such run
  bool same_ranks = true;         ///< else the work is divided anew, and nothing else holds
  std::optional<int> threads{};   ///< of this rank
  std::int64_t batch_tokens = 0;  ///< 0: open
};

/// Reads it from the header of the folder's journal. Throws CheckpointError for a header that is none.
EarlierRun earlier_run(const Rank& rank, const output::RunFolder& folder);

/// Throws UsageError when the run that the folder holds is not the one of `identity`. Rank 0 compares: other hosts' copies of
/// the model have other times.
void require_same_run(const Rank& rank, const output::RunFolder& folder, const setup::RunIdentity& identity);
/// The same, whatever the data is.
void require_same_run_but_data(const Rank& rank, const output::RunFolder& folder, setup::RunIdentity identity);

/// Takes over finished subgraphs whose files are whole on all ranks; the others are done again. Returns how many are taken.
/// Collective.
std::size_t accept_finished(const Rank& rank, const setup::RunSetup& setup, const output::RunFolder& folder,
                            output::OutputWriter& output);

/// What finished subgraphs left for those that still have to be done.
struct Leftovers {
  std::unique_ptr<output::ResumedWeights> weights;    ///< compressed ones read back
  std::unique_ptr<residency::ActivationStore> store;  ///< null: values are computed again
  std::vector<graph::ValueId> available{};            ///< in the store
};

/// For the sequential pipeline. `input` says what is finished and how large batches are.
Leftovers find_leftovers(const Rank& rank, const output::RunFolder& folder, const output::OutputWriter& output,
                         const plan::PlanInput& input);

}  // namespace layerpress::run
