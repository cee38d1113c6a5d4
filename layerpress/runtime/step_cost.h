#pragma once

#include <map>
#include <string>
#include <vector>

#include "layerpress/runtime/divided_compression.h"
#include "layerpress/runtime/group_compression.h"

namespace layerpress::runtime {

/// What compressing the groups of one step takes, with the ranks that divide them.
struct StepCost {
  /// Groups alike that one process compresses at once, or one group that ranks divide.
  struct Turn {
    std::size_t groups = 1;
    std::vector<LinearShape> linears;   ///< of each group
    std::uint64_t workspace_bytes = 0;  ///< of the rank that has most of its rows, results included
    std::uint64_t result_bytes = 0;     ///< all rows of all linears of all these groups, in codes
  };
  std::vector<Turn> turns;
  std::map<std::string, double> flops;  ///< of the rank that has most to do, by phase
  std::size_t ranks = 1;
  ExchangeBytes exchange;
};

StepCost step_cost(const graph::Graph& graph, const std::vector<GroupWork>& works, const Assignments& assignments);

}  // namespace layerpress::runtime
