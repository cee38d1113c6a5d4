#pragma once

#include <string>
#include <vector>

#include "layerpress/base/phase_times.h"
#include "layerpress/dist/group.h"
#include "layerpress/graph/stages.h"
#include "layerpress/runtime/activation_store.h"
#include "layerpress/runtime/batch.h"
#include "layerpress/runtime/group_division.h"
#include "layerpress/runtime/onload.h"

namespace layerpress::runtime {

/// Everything a pipeline runs with. Refers to what its caller owns.
struct RunContext {
  const graph::Graph& graph;
  const WeightSource& weights;
  Placement placement;
  const std::vector<Batch>& batches;
  RunControl control;
  PhaseTimes& times;
  dist::Group& group;
  DivisionRates division_rates{};
  std::int64_t all_tokens = 0;  ///< of all ranks' batches; used when there are several
};

/// Runs the nodes of `stage` on one batch: reads its inputs from the store and puts what it keeps there. Values inside
/// the stage live until their last reader. Returns the value that the stage is run for (undefined for a last stage).
at::Tensor run_stage(const RunContext& run, const graph::Stage& stage, const Onload& parameters, std::size_t batch,
                     ActivationStore& store);

/// Names of all weights that `nodes` read, each once.
std::vector<std::string> weight_names(const graph::Graph& graph, const std::vector<graph::NodeId>& nodes);

/// Runs the whole graph up to (not including) `last`, subgraph by subgraph, and returns each batch's value of `wanted`.
std::vector<at::Tensor> run_to_value(const RunContext& run, const std::vector<graph::Subgraph>& subgraphs,
                                     graph::ValueId wanted);

}  // namespace layerpress::runtime
