#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "layerpress/runtime/schedule.h"
#include "layerpress/runtime/stage_runner.h"

namespace layerpress::runtime {

/// Receives results while a run goes on.
class ResultSink {
 public:
  virtual ~ResultSink() = default;
  /// Whether this process is the one that stores a linear's results; without data it is also the only one to make them.
  virtual bool owns(graph::NodeId) const { return true; }
  /// A module's codes, as soon as they are final.
  virtual void on_compressed(const graph::Node& node, const quant::QuantizationScheme& scheme,
                             const CompressedModule& result) = 0;
  /// All weights that only subgraph `index` reads are final; the uncompressed ones may be copied. `boundary`: where the
  /// values that later subgraphs read are stored on disk (ActivationStore::boundary), or null.
  virtual void on_subgraph_done(std::size_t index, const Json& boundary) = 0;
  /// The last subgraph whose results and boundary would outlive a crash at this moment.
  virtual std::optional<std::size_t> durable_subgraph() { return std::nullopt; }
};

/// Subgraph after subgraph, all batches through each. Inside a subgraph one pass, cut before each linear group: run up to
/// the group's input and collect statistics, compress the group, go on with the compressed weights. Every linear runs
/// once, with its compressed weights, and sees the error of what was compressed before it. The weights of the next
/// subgraph are read while one computes. `weights` of the run gives the compressed weights of finished subgraphs.
void run_sequential(const RunContext& run, const std::vector<SubgraphSchedule>& schedule,
                    const Assignments& assignments, ActivationStore& store, ResultSink& sink);

/// The whole model per batch on the original weights, statistics for all groups at once, then compression, subgraph by
/// subgraph; those that are `finished` (empty: none) are left out.
void run_basic(const RunContext& run, const std::vector<graph::Subgraph>& subgraphs, const Assignments& assignments,
               const std::vector<bool>& finished, ResultSink& sink);

/// Weights only, without data: linears one after the other, kernels use all threads. Each rank does those that the sink owns.
void run_datafree(const RunContext& run, const std::vector<graph::Subgraph>& subgraphs, const Assignments& assignments,
                  const std::vector<bool>& finished, ResultSink& sink);

}  // namespace layerpress::runtime
