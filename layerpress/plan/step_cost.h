#pragma once

#include <map>
#include <string>
#include <vector>

#include "layerpress/pipeline/divided_compression.h"
#include "layerpress/pipeline/group_compression.h"

namespace layerpress::plan {

/// What compressing the groups of one step takes, with the ranks that divide them.
struct StepCost {
  /// Groups alike that one process compresses at once, or one group that ranks divide.
  struct Turn {
    std::size_t groups = 1;
    std::vector<compression::LinearShape> linears;  ///< of each group
    std::uint64_t workspace_bytes = 0;              ///< of the rank that has most of its rows, results included
    std::uint64_t result_bytes = 0;                 ///< all rows of all linears of all these groups, in codes
  };
  std::vector<Turn> turns;
  std::map<std::string, double> flops;  ///< of the rank that has most to do, by phase
  std::size_t ranks = 1;
  pipeline::ExchangeBytes exchange;
};

StepCost step_cost(const graph::Graph& graph, const std::vector<schedule::GroupWork>& works,
                   const compression::Assignments& assignments);

}  // namespace layerpress::plan
