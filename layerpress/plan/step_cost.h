#pragma once

#include <map>
#include <string>
#include <vector>

#include "layerpress/pipeline/divided_compression.h"
#include "layerpress/pipeline/group_compression.h"

namespace layerpress::plan {

/// The cost of compressing the groups of one step, divided among ranks.
struct StepCost {
  /// Equal groups that one process compresses together, or one group that ranks divide.
  struct Turn {
    std::size_t groups = 1;
    std::vector<compression::LinearShape> linears;  ///< of each group
    std::uint64_t workspace_bytes = 0;              ///< of the rank with most of its rows, including results
    std::uint64_t result_bytes = 0;                 ///< codes of all rows of all linears of these groups
    bool propagates = true;                         ///< later nodes use the compressed weights
    std::uint64_t host_bytes = 0;                   ///< besides, on the host of a device
  };
  std::vector<Turn> turns;
  std::map<std::string, double> flops;  ///< of the rank with the most work, by phase
  std::size_t ranks = 1;
  pipeline::ExchangeBytes exchange;
};

StepCost step_cost(const graph::Graph& graph, const std::vector<schedule::GroupWork>& works,
                   const compression::Assignments& assignments);

}  // namespace layerpress::plan
