#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "layerpress/compression/assignments.h"
#include "layerpress/pipeline/sinks/result_sink.h"
#include "layerpress/pipeline/statistics_store.h"

namespace layerpress::pipeline {

/// The ranges of values from which stored parameters follow (Assignments::stored). They outlive the values' statistics, because
/// some modules share the range of values that are collected one after the other.
class StoredRanges {
 public:
  StoredRanges(const graph::Graph& graph, const compression::Assignments& assignments);

  /// Keeps the value's range if it is needed. All ranks have the statistics from which it follows.
  void take(graph::ValueId value, const StatisticsStore& statistics);
  /// Passes parameters to the sink: indices in Assignments::stored, whose ranges have been taken. Throws RecipeError if no token
  /// has reached a module.
  void store(const std::vector<std::size_t>& stored, ResultSink& sink) const;

 private:
  at::Tensor common_range(const compression::StoredParameters& stored) const;

  const graph::Graph& graph_;
  const compression::Assignments& assignments_;
  /// By value and name of the statistic.
  std::map<graph::ValueId, std::map<std::string, compression::RangeStatisticPtr>> wanted_;
  std::map<std::pair<graph::ValueId, std::string>, at::Tensor> ranges_;
};

}  // namespace layerpress::pipeline
