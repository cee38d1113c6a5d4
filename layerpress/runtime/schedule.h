#pragma once

#include <string>
#include <vector>

#include "layerpress/graph/stages.h"
#include "layerpress/runtime/modifier.h"

namespace layerpress::runtime {

/// What the sequential pipeline does with one subgraph, decided before anything runs.
struct SubgraphSchedule {
  std::string name;
  bool finished = false;                           ///< compressed by an earlier run; only runs for later subgraphs
  std::vector<graph::LinearGroup> groups;          ///< to compress
  std::vector<graph::Stage> stages;                ///< one per group, and the last
  std::vector<std::vector<graph::ValueId>> drops;  ///< per stage: stored values that go once a batch has passed it
  std::vector<std::string> weights;                ///< to onload
  std::vector<graph::ValueId> boundary;            ///< values stored when the subgraph is done
  bool recomputes = false;                         ///< some stage runs nodes of earlier ones again
};

/// What a schedule is made from.
struct ScheduleRequest {
  const graph::Graph& graph;
  const std::vector<graph::Subgraph>& subgraphs;
  const Assignments& assignments;
  std::vector<bool> finished;                 ///< per subgraph: compressed in an earlier run (empty: none)
  std::vector<graph::ValueId> available;      ///< values that are stored already
  std::vector<std::vector<bool>> keep_after;  ///< per subgraph and group, see graph::split_stages (empty: keep)
};

std::vector<SubgraphSchedule> make_schedule(const ScheduleRequest& request);

}  // namespace layerpress::runtime
