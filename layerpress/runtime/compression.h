#pragma once

#include <map>
#include <string>
#include <vector>

#include "layerpress/graph/partition.h"
#include "layerpress/runtime/modifier.h"
#include "layerpress/runtime/stage_runner.h"

namespace layerpress::runtime {

/// Who compresses a linear node, and how.
struct Assignment {
  const Modifier* modifier = nullptr;
  const quant::QuantizationScheme* scheme = nullptr;
  at::ScalarType scale_dtype = at::kBFloat16;
};

/// Compressed linears by node.
using Assignments = std::map<graph::NodeId, Assignment>;

/// Receives results while a run goes on.
class ResultSink {
 public:
  virtual ~ResultSink() = default;
  /// A module's codes, as soon as they are final.
  virtual void on_compressed(const graph::Node& node, const quant::QuantizationScheme& scheme,
                             const CompressedModule& result) = 0;
  /// All weights that only these nodes read are final; the uncompressed ones may be copied.
  virtual void on_subgraph_done(const graph::Subgraph& subgraph) = 0;
};

/// Subgraph after subgraph, all batches through each. Inside a subgraph one pass, cut before each linear group: run up to
/// the group's input and collect statistics, compress the group, go on with the compressed weights. Every linear runs
/// once, with its compressed weights, and sees the error of what was compressed before it.
void run_sequential(const RunContext& run, const std::vector<graph::Subgraph>& subgraphs,
                    const Assignments& assignments, ResultSink& sink);

/// The whole model per batch on the original weights, statistics for all groups at once, then compression.
/// Throws MemoryError when the Gram matrices do not fit, saying how much they need.
void run_basic(const RunContext& run, const std::vector<graph::Subgraph>& subgraphs, const Assignments& assignments,
               ResultSink& sink);

/// Weights only, without data: linears one after the other, kernels use all threads.
void run_datafree(const RunContext& run, const std::vector<graph::Subgraph>& subgraphs, const Assignments& assignments,
                  ResultSink& sink);

/// Bytes of the Gram matrices that run_basic holds at once.
std::uint64_t gram_bytes(const graph::Graph& graph, const std::vector<graph::Subgraph>& subgraphs,
                         const Assignments& assignments);

}  // namespace layerpress::runtime
