#pragma once

#include <map>
#include <optional>
#include <vector>

#include "layerpress/compression/modifier.h"
#include "layerpress/execution/stage_runner.h"

namespace layerpress::pipeline {

/// The assignments of a run, and the values that linears have in common with those that engines fuse with them
/// (Modifier::value_to_share). What a linear contributes is computed once, from its original weight, whoever asks first.
class SharedValues {
 public:
  SharedValues(const execution::RunContext& run, const compression::Assignments& assignments)
      : graph_(run.graph),
        originals_(run.original == nullptr ? run.weights : *run.original),
        assignments_(assignments) {}

  const compression::Assignments& assignments() const { return assignments_; }

  /// Fills in LinearWeight::shared of whole weights.
  void fill(const std::vector<graph::NodeId>& nodes, std::vector<compression::LinearWeight>& linears);

 private:
  std::optional<double> contribution(graph::NodeId n, const compression::LinearWeight& linear);
  /// Of a linear whose weight is read for it.
  std::optional<double> contribution(graph::NodeId n);

  const graph::Graph& graph_;
  const residency::WeightSource& originals_;
  const compression::Assignments& assignments_;
  std::map<graph::NodeId, std::optional<double>> contributions_;
};

}  // namespace layerpress::pipeline
