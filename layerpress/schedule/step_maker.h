#pragma once

#include <cstddef>
#include <set>
#include <vector>

#include "layerpress/schedule/demand.h"
#include "layerpress/schedule/schedule.h"

namespace layerpress::schedule {

/// Makes the steps of subgraphs, which are asked for in order: statistics that an earlier step collects are not collected
/// again.
class StepMaker {
 public:
  /// Refers to both.
  StepMaker(const ScheduleRequest& request, const Demand& demand)
      : request_(request), graph_(request.graph), demand_(demand) {}

  /// Groups without statistics come first: they are compressed before anything runs that might read them. Then those with
  /// statistics, and what is left to run. Stages are those of the compressed model.
  std::vector<Step> steps(std::size_t s);

 private:
  Step collecting_step(std::vector<graph::LinearGroup> groups);
  void split(std::size_t s, std::size_t first, std::vector<Step>& steps) const;
  bool selects_for_statistics(const Step& step, const graph::Node& selection) const;
  bool add_survey(std::size_t first, std::vector<Step>& steps);

  const ScheduleRequest& request_;
  const graph::Graph& graph_;
  const Demand& demand_;
  std::set<graph::ValueId> surveyed_, collected_;
};

}  // namespace layerpress::schedule
