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
#include "layerpress/run/compression/rank.h"
#include "layerpress/setup/run_identity.h"

namespace layerpress::run {

/// The decisions of an earlier run that still apply when its output is continued.
struct EarlierRun {
  int shard_sets = 0;             ///< sets of its files; 0: there was no such run
  bool same_ranks = true;         ///< otherwise the work is divided anew, and the members below do not apply
  std::optional<int> threads{};   ///< of this rank
  std::int64_t batch_tokens = 0;  ///< 0: not decided
};

/// Reads the decisions from the journal of the run that --resume continues, if there is one. Throws CheckpointError for a malformed header.
/// Collective.
EarlierRun earlier_run(const Rank& rank);

/// What an earlier run must agree in, without data and plan.
setup::RunIdentity identity_of(const OneshotOptions& options, const setup::RunSetup& setup);

/// Throws UsageError if the folder's run is not that of `identity`. Rank 0 compares, because other hosts' copies of
/// the model have different modification times.
void require_same_run(const Rank& rank, const output::RunFolder& folder, const setup::RunIdentity& identity);
/// The same without comparing the data.
void require_same_run_but_data(const Rank& rank, const output::RunFolder& folder, setup::RunIdentity identity);

/// Whether a finished output is that of `identity`. If it is another run's, throws UsageError, unless --overwrite is there.
/// Collective.
bool is_result_of(const Rank& rank, const setup::RunIdentity& identity, const setup::OpenedModel& model);

/// Takes over finished subgraphs whose files are intact on all ranks; the others are repeated. Returns the number taken
/// over. Collective.
std::size_t accept_finished(const Rank& rank, const setup::RunSetup& setup, const output::RunFolder& folder,
                            output::OutputWriter& output);

/// The results of finished subgraphs that the remaining subgraphs need.
struct Leftovers {
  std::unique_ptr<output::ResumedWeights> weights;    ///< with compressed weights read back
  std::unique_ptr<residency::ActivationStore> store;  ///< null: values are computed again
  std::vector<graph::ValueId> available{};            ///< in the store
};

/// For the sequential pipeline. `input` has the finished subgraphs and the size of batches.
Leftovers find_leftovers(const Rank& rank, const output::RunFolder& folder, const output::OutputWriter& output,
                         const plan::PlanInput& input);

}  // namespace layerpress::run
