#include "layerpress/schedule/value_statistics.h"

#include <algorithm>

#include "layerpress/graph/facts/residual_writes.h"

namespace layerpress::schedule {

bool wants_original(const compression::Assignments& assignments) {
  return std::any_of(assignments.linears.begin(), assignments.linears.end(),
                     [](const auto& entry) { return entry.second.modifier->wants_original(); });
}

std::optional<graph::OriginalStream> original_stream(const graph::Graph& graph,
                                                     const compression::Assignments& assignments) {
  if (!wants_original(assignments)) return std::nullopt;
  return graph::OriginalStream(graph, assignments.changed(graph));
}

ValueStatistics::ValueStatistics(const graph::Graph& graph, const compression::Assignments& assignments) {
  const std::optional<graph::OriginalStream> original = original_stream(graph, assignments);
  std::map<graph::ValueId, graph::ResidualWrite> writes;
  if (original) writes = graph::residual_writes(graph);
  for (const auto& [n, assignment] : assignments.linears) {
    const graph::ValueId value = graph.nodes[n].inputs[0];
    compression::ValueFacts facts{.value = value, .scheme = assignment.scheme};
    facts.differs = original && original->differs(value);
    if (const auto write = writes.find(value); write != writes.end() && original->differs(write->second.stream))
      facts.write = write->second;
    const std::vector<compression::StatisticPtr> statistics = assignment.statistics_wanted(facts);
    if (statistics.empty()) continue;
    ++wanted_[value].readers;
    add(value, statistics);
  }
  for (const compression::StoredParameters& stored : assignments.stored)
    for (const graph::ValueId value : *stored.values) add(value, {stored.statistic});
  for (const compression::PlannedTransform& planned : assignments.transforms)
    for (const auto& [value, statistics] : planned.site.statistics) {
      add(value, statistics);
      for (const compression::StatisticPtr& statistic : statistics)
        wanted_[value].of_transforms.insert(std::string(statistic->name()));
    }
}

void ValueStatistics::add(graph::ValueId value, const std::vector<compression::StatisticPtr>& statistics) {
  std::vector<compression::StatisticPtr>& known = wanted_[value].statistics;
  for (const compression::StatisticPtr& statistic : statistics)
    if (std::none_of(known.begin(), known.end(), [&](const auto& other) { return other->name() == statistic->name(); }))
      known.push_back(statistic);
}

std::vector<compression::StatisticPtr> ValueStatistics::of_quantizers_alone(graph::ValueId value) const {
  std::vector<compression::StatisticPtr> alone;
  if (const auto found = wanted_.find(value); found != wanted_.end())
    for (const compression::StatisticPtr& statistic : found->second.statistics)
      if (!statistic->everywhere() && found->second.of_transforms.count(statistic->name()) == 0)
        alone.push_back(statistic);
  return alone;
}

const std::vector<compression::StatisticPtr>& ValueStatistics::of(graph::ValueId value) const {
  static const std::vector<compression::StatisticPtr> kNone;
  const auto found = wanted_.find(value);
  return found == wanted_.end() ? kNone : found->second.statistics;
}

std::vector<graph::ValueId> ValueStatistics::sources(graph::ValueId value) const {
  std::vector<graph::ValueId> values = {value};
  for (const compression::StatisticPtr& statistic : of(value))
    for (const compression::StatisticSource& source : statistic->sources(value))
      if (!source.original && std::find(values.begin(), values.end(), source.value) == values.end())
        values.push_back(source.value);
  return values;
}

std::uint64_t ValueStatistics::bytes(const graph::Graph& graph, graph::ValueId value) const {
  const std::int64_t features = graph.values[value].features;
  std::uint64_t bytes = 0;
  for (const compression::StatisticPtr& statistic : of(value))
    bytes += static_cast<std::uint64_t>(statistic->rows(features) * features) * sizeof(float);
  return bytes;
}

std::size_t ValueStatistics::readers(graph::ValueId value) const {
  const auto found = wanted_.find(value);
  return found == wanted_.end() ? 0 : found->second.readers;
}

}  // namespace layerpress::schedule
