#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "layerpress/compression/assignments.h"
#include "layerpress/graph/facts/original_stream.h"

namespace layerpress::schedule {

/// Whether any modifier needs the original model's values.
bool wants_original(const compression::Assignments& assignments);
/// The part of the original model that then runs beside the compressed one; else nothing.
std::optional<graph::OriginalStream> original_stream(const graph::Graph& graph,
                                                     const compression::Assignments& assignments);

/// The statistics that are collected for each value.
class ValueStatistics {
 public:
  ValueStatistics(const graph::Graph& graph, const compression::Assignments& assignments);

  /// Each once; empty where none are wanted.
  const std::vector<compression::StatisticPtr>& of(graph::ValueId value) const;
  /// The values of the compressed model that they are computed from; `value` first.
  std::vector<graph::ValueId> sources(graph::ValueId value) const;
  /// The memory of their figures, in bytes.
  std::uint64_t bytes(const graph::Graph& graph, graph::ValueId value) const;
  /// Those of which only the rank needs figures that compresses the value's linears: large ones that no transform uses.
  std::vector<compression::StatisticPtr> of_quantizers_alone(graph::ValueId value) const;
  /// The number of linears in the whole graph that read the value and want its statistics.
  std::size_t readers(graph::ValueId value) const;

 private:
  struct Wanted {
    std::vector<compression::StatisticPtr> statistics;
    std::size_t readers = 0;
    std::set<std::string, std::less<>> of_transforms;  // names of those that transforms use
  };
  void add(graph::ValueId value, const std::vector<compression::StatisticPtr>& statistics);
  std::map<graph::ValueId, Wanted> wanted_;
};

}  // namespace layerpress::schedule
