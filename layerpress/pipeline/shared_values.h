#pragma once

#include <map>
#include <optional>
#include <vector>

#include "layerpress/compression/assignments.h"
#include "layerpress/execution/stage_runner.h"

namespace layerpress::pipeline {

/// The assignments of a run, and the values that linears have in common with those that engines fuse with them
/// (Quantizer::value_to_share). The contribution of a linear is computed once, from its weight before it is compressed.
class SharedValues {
 public:
  SharedValues(const execution::RunContext& run, const compression::Assignments& assignments)
      : graph_(run.graph),
        originals_(run.original == nullptr ? run.weights : *run.original),
        assignments_(assignments) {}

  const compression::Assignments& assignments() const { return assignments_; }

  /// Fills in LinearWeight::shared of whole weights that read one value. `parameters` has the weights that transforms have changed.
  void fill(const std::vector<graph::NodeId>& nodes, const compression::Statistics* statistics,
            const residency::Onload& parameters, std::vector<compression::LinearWeight>& linears);

 private:
  std::optional<double> contribution(graph::NodeId n, const compression::LinearWeight& linear,
                                     const compression::Statistics* statistics);
  /// Reads the weight if it is not known.
  std::optional<double> contribution(graph::NodeId n, const residency::Onload& parameters,
                                     const compression::Statistics* statistics);

  const graph::Graph& graph_;
  const residency::WeightSource& originals_;
  const compression::Assignments& assignments_;
  std::map<graph::NodeId, std::optional<double>> contributions_;
};

}  // namespace layerpress::pipeline
