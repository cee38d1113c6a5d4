#include "layerpress/plan/planned_statistics.h"

#include <algorithm>
#include <string>

#include "layerpress/pipeline/statistics_store.h"

namespace layerpress::plan {
namespace {

bool has(const std::vector<graph::ValueId>& values, graph::ValueId value) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

}  // namespace

PlannedStatistics::PlannedStatistics(const PlanRequest& request, const PlannedSizes& sizes)
    : run_(request.input.run), sizes_(sizes) {}

PlannedCollection PlannedStatistics::collect(const schedule::Step& step, SubgraphPlan& plan) {
  PlannedCollection collection;
  for (const auto& [value, statistics] : step.statistics) {
    collection.workspace = std::max(collection.workspace, hold(value, statistics, plan));
    const compression::StatisticSource last = last_source(statistics, value);
    (last.original ? collection.original : collection.own).insert(last.value);
  }
  return collection;
}

std::uint64_t PlannedStatistics::hold(graph::ValueId value, const std::vector<compression::StatisticPtr>& statistics,
                                      SubgraphPlan& plan) {
  const std::int64_t features = sizes_.graph().values[value].features;
  const double rows = sizes_.counted_rows(value);
  std::uint64_t most = 0;
  for (const compression::StatisticPtr& statistic : statistics) {
    const std::uint64_t bytes = static_cast<std::uint64_t>(statistic->rows(features) * features) * sizeof(float);
    held_[value] += bytes;
    bytes_ += bytes;
    std::uint64_t workspace =
        statistic->workspace_bytes(features, run_.placement.dtype, run_.placement.device, run_.threads);
    if (const std::string needed = statistic->parameter(); !needed.empty() && !sizes_.can_stay(needed))
      workspace += sizes_.weight_bytes(needed);
    most = std::max(most, workspace);
    plan.flops[statistic->phase()] += statistic->flops(rows, features, statistic->all_rows(features));
  }
  plan.statistics_bytes = std::max(plan.statistics_bytes, bytes_);
  return most + pipeline::merge_workspace_bytes(statistics, features, run_.ranks);
}

std::uint64_t PlannedStatistics::held_bytes(const schedule::Step& step, const PlannedCollection& collection,
                                            std::size_t batch) const {
  std::uint64_t bytes = 0;
  for (const auto& [value, statistics] : step.statistics) {
    std::set<compression::StatisticSource> sources;
    for (const compression::StatisticPtr& statistic : statistics)
      for (const compression::StatisticSource& source : statistic->sources(value)) sources.insert(source);
    for (const compression::StatisticSource& source : sources) {
      const graph::Stage& stage = source.original ? step.original : step.stage;
      if (source.value != value && !has(stage.inputs, source.value) && !has(stage.keeps, source.value))
        bytes += sizes_.value_bytes(source.value, batch);
    }
  }
  for (const graph::ValueId value : collection.original) bytes += sizes_.value_bytes(value, batch);
  return bytes;
}

void PlannedStatistics::drop(graph::ValueId value) {
  const auto found = held_.find(value);
  if (found == held_.end()) return;
  bytes_ -= found->second;
  held_.erase(found);
}

}  // namespace layerpress::plan
