#pragma once

#include <cstdint>
#include <vector>

#include "layerpress/graph/facts/expert_layers.h"
#include "layerpress/plan/run_plan.h"

namespace layerpress::run {

/// The model's layers, cut before the experts of each and what chooses among them, where the fewest values are passed on: what stands before is
/// the same with fewer experts.
std::vector<graph::Subgraph> cut_at_experts(const model::TracedModel& traced,
                                            const std::vector<graph::ExpertLayer>& layers);

/// The last layer's output.
graph::ValueId output_of_experts(const graph::Graph& graph, const std::vector<graph::ExpertLayer>& layers);

/// How the contributions of experts are measured: the model and one with fewer experts go through the layers in turn. `batch_tokens`: 0: chosen. The
/// plan's activation limit is that of both together. Throws MemoryError if the budgets are too small.
plan::RunPlan plan_experts(const setup::RunSetup& setup, const std::vector<plan::SampleShape>& samples,
                           std::int64_t batch_tokens);

}  // namespace layerpress::run
