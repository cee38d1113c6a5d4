#pragma once

#include <cstddef>
#include <map>
#include <set>
#include <vector>

#include "layerpress/schedule/demand.h"
#include "layerpress/schedule/schedule.h"

namespace layerpress::schedule {

/// How often the batches pass a subgraph.
enum class Passes {
  kOne,  ///< each group is compressed as soon as it can be, and what follows it is computed with the result
  kTwo,  ///< all groups are compressed in one step, and what follows any of them is computed again
};

/// Makes the steps of subgraphs, which are asked for in order: statistics that an earlier step collects are not collected
/// again.
class StepMaker {
 public:
  /// Refers to both.
  StepMaker(const ScheduleRequest& request, const Demand& demand, Passes passes)
      : request_(request), graph_(request.graph), demand_(demand), passes_(passes) {}

  /// In one pass, groups that neither want statistics nor are changed by transforms come first: they are compressed before anything
  /// runs that might read them. Then the others, and what is left to run. Stages are those of the compressed model.
  std::vector<Step> steps(std::size_t s);

 private:
  /// What depends on equally many compressed groups.
  struct Level {
    std::vector<std::size_t> transforms;
    std::vector<graph::LinearGroup> groups;
    std::vector<graph::ValueId> observed;
  };
  const compression::TransformSite& site(std::size_t transform) const;
  /// How many levels of linears have to be compressed or changed before a value can be computed.
  using ValueLevels = std::map<graph::ValueId, std::size_t>;
  ValueLevels levels_of_values(std::size_t s, std::vector<graph::LinearGroup> groups,
                               const std::set<std::string>& changed) const;
  static std::size_t level_of(const ValueLevels& value_levels, graph::ValueId value);
  std::set<graph::ValueId> rounded_behind_transforms(std::size_t s) const;
  std::vector<Level> levels(std::size_t s, const std::vector<graph::LinearGroup>& groups,
                            const ValueLevels& value_levels) const;
  void add_statistics(Step& step);
  std::vector<graph::ValueId> wanted_in(const Step& step) const;
  std::vector<graph::ValueId> stale_after(const Step& step, const ValueLevels& value_levels) const;
  void split(std::size_t s, std::size_t first, const ValueLevels& value_levels, std::vector<Step>& steps) const;
  void add_trials(std::size_t s, std::size_t first, std::vector<Step>& steps) const;
  bool selects_for_statistics(const Step& step, const graph::Node& selection) const;
  bool add_survey(std::size_t first, std::vector<Step>& steps);

  const ScheduleRequest& request_;
  const graph::Graph& graph_;
  const Demand& demand_;
  const Passes passes_;
  std::set<graph::ValueId> surveyed_, collected_;
};

}  // namespace layerpress::schedule
