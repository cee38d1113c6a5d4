#pragma once

#include <map>
#include <vector>

#include "layerpress/schedule/schedule.h"

namespace layerpress::schedule {

/// Counts the uses of each value's statistics that are still to come.
class StatisticsUsers {
 public:
  StatisticsUsers(const Schedule& schedule, const compression::Assignments& assignments) : assignments_(assignments) {
    for (const SubgraphSchedule& subgraph : schedule)
      for (const Step& step : subgraph.steps)
        for (const graph::ValueId value : statistics_used(step, assignments)) ++uses_[value];
  }

  /// The values whose statistics no later step uses. To be called once for each step, in order.
  std::vector<graph::ValueId> unused_after(const Step& step) {
    std::vector<graph::ValueId> unused;
    for (const graph::ValueId value : statistics_used(step, assignments_))
      if (--uses_.at(value) == 0) unused.push_back(value);
    return unused;
  }

 private:
  const compression::Assignments& assignments_;
  std::map<graph::ValueId, int> uses_;
};

}  // namespace layerpress::schedule
