#pragma once

#include <functional>
#include <string>
#include <vector>

#include "layerpress/base/phase_times.h"
#include "layerpress/dist/division.h"
#include "layerpress/dist/group.h"
#include "layerpress/execution/batch.h"
#include "layerpress/execution/expert_survey.h"
#include "layerpress/graph/reference_stream.h"
#include "layerpress/graph/stages.h"
#include "layerpress/residency/activation_store.h"
#include "layerpress/residency/onload.h"

namespace layerpress::execution {

/// Everything a pipeline runs with. Refers to what its caller owns.
struct RunContext {
  const graph::Graph& graph;
  const residency::WeightSource& weights;
  residency::Placement placement;
  const std::vector<Batch>& batches;
  RunControl control;
  PhaseTimes& times;
  dist::Group& group;
  dist::DivisionRates division_rates{};
  std::int64_t all_tokens = 0;             ///< of all ranks' batches; used when there are several
  std::int64_t min_tokens_per_expert = 0;  ///< on which an expert is calibrated at least, where tokens are selected
  const residency::WeightSource* original =
      nullptr;  ///< of the uncompressed model, where `weights` has compressed ones; null: the same
};

/// What happens to the values that a stage is run for, as soon as each is there.
using OnWanted = std::function<void(graph::ValueId, const at::Tensor&)>;

/// Beside what every stage needs.
struct StageOptions {
  OnWanted on_wanted{};
  const ExpertSurveys* surveys = nullptr;  ///< for nodes that select tokens for experts
  const graph::ReferenceStream* reference =
      nullptr;  ///< when it is the original model's values that are read and stored
};

/// Where a stage's inputs come from and what it keeps goes to, by what a value is stored as.
struct StageValues {
  std::function<at::Tensor(graph::ValueId stored)> get;
  std::function<void(graph::ValueId stored, at::Tensor)> put;
};

/// Runs the nodes of `stage` on one batch. Values inside the stage live until their last reader.
void run_stage(const RunContext& run, const graph::Stage& stage, const residency::Onload& parameters,
               const Batch& batch, const StageValues& values, const StageOptions& options = {});

/// The same for batch number `batch` of the run, with the store's values.
void run_stage(const RunContext& run, const graph::Stage& stage, const residency::Onload& parameters, std::size_t batch,
               residency::ActivationStore& store, const StageOptions& options = {});

}  // namespace layerpress::execution
