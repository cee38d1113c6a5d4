#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "layerpress/plan/planned_sizes.h"

namespace layerpress::plan {

/// What a stage takes for one batch.
struct StageNeeds {
  std::uint64_t most = 0;               ///< bytes of values and workspaces at the worst moment
  std::uint64_t frame = 0;              ///< bytes of values at the end
  std::map<std::string, double> flops;  ///< by phase
  double forward_bytes = 0;             ///< values that norms, activations and sums read and write
};

/// `workspace_of(value)`: bytes that are needed besides when a value is computed, for its statistics. Inputs from the store
/// are not counted: the store counts them, or they are mapped pages of the scratch file.
StageNeeds stage_needs(const PlannedSizes& sizes, const execution::Batch& batch, std::size_t index,
                       const graph::Stage& stage, const std::function<std::uint64_t(graph::ValueId)>& workspace_of);

}  // namespace layerpress::plan
