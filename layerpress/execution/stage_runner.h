#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "layerpress/base/system/phase_times.h"
#include "layerpress/dist/division.h"
#include "layerpress/dist/group.h"
#include "layerpress/execution/batch.h"
#include "layerpress/execution/expert_contributions.h"
#include "layerpress/execution/expert_survey.h"
#include "layerpress/graph/facts/original_stream.h"
#include "layerpress/graph/stages.h"
#include "layerpress/residency/activation_store.h"
#include "layerpress/residency/onload.h"

namespace layerpress::execution {

/// Everything that a pipeline needs for a run. Refers to objects of the caller.
struct RunContext {
  const graph::Graph& graph;
  const residency::WeightSource& weights;
  residency::Placement placement;
  const std::vector<Batch>& batches;
  RunControl control;
  PhaseTimes& times;
  dist::Group& group;
  dist::DivisionRates division_rates{};
  std::int64_t all_tokens = 0;                        ///< tokens of all ranks; used with several ranks
  std::int64_t min_tokens_per_expert = 0;             ///< least tokens for an expert, if tokens are selected
  const residency::WeightSource* original = nullptr;  ///< original weights, if `weights` has compressed ones; else null
  std::int64_t all_samples = 0;                       ///< samples of all ranks
  std::shared_ptr<RotaryTables> rotary_tables = std::make_shared<RotaryTables>();
  ExpertContributions* contributions = nullptr;  ///< to be measured; null: not
};

/// Called with each wanted value of a stage as soon as it is computed.
using OnWanted = std::function<void(graph::ValueId, const at::Tensor&)>;

/// Options of a stage besides its usual inputs.
struct StageOptions {
  OnWanted on_wanted{};
  const ExpertSurveys* surveys = nullptr;           ///< for nodes that select experts' tokens
  const graph::OriginalStream* original = nullptr;  ///< set if the original model's values are read and stored
};

/// The source of a stage's inputs and the destination of its kept values, by their ids in the store.
struct StageValues {
  std::function<at::Tensor(graph::ValueId stored)> get;
  std::function<void(graph::ValueId stored, at::Tensor)> put;
};

/// Runs the nodes of `stage` on one batch. Values inside the stage are freed after their last reader.
void run_stage(const RunContext& run, const graph::Stage& stage, const residency::Onload& parameters,
               const Batch& batch, const StageValues& values, const StageOptions& options = {});

/// The same for batch number `batch` of the run, with values from the store.
void run_stage(const RunContext& run, const graph::Stage& stage, const residency::Onload& parameters, std::size_t batch,
               residency::ActivationStore& store, const StageOptions& options = {});

}  // namespace layerpress::execution
