#pragma once

#include <string>
#include <vector>

#include "layerpress/execution/stage_runner.h"

namespace layerpress::execution {

/// A part of a model that computes some value.
struct BodyStage {
  std::string name;
  graph::Stage stage;
  std::vector<graph::ValueId> freed{};  ///< that no later stage reads
  bool is_layer = false;                ///< one of the model's layers, rather than what stands before or behind them
};

/// The stages that compute `wanted`, one for each subgraph that it needs.
std::vector<BodyStage> body_stages(const graph::Graph& graph, std::vector<graph::Subgraph> subgraphs,
                                   graph::ValueId wanted);

/// Runs a model over all batches, subgraph by subgraph, so that values can be examined in between.
class BodyRun {
 public:
  /// Runs up to `wanted`, the last value to compute. Keeps a reference to `run`. `store`: where values between subgraphs are.
  BodyRun(const RunContext& run, std::vector<graph::Subgraph> subgraphs, graph::ValueId wanted,
          residency::ActivationStore::Options store = {});

  std::size_t size() const { return stages_.size(); }
  const std::string& name(std::size_t s) const { return stages_[s].name; }
  bool is_layer(std::size_t s) const { return stages_[s].is_layer; }

  bool holds(std::size_t s, graph::NodeId node) const;

  /// Runs all batches through subgraph `s`. To be called once for each subgraph, in order.
  void run(std::size_t s);
  /// Instead of running: takes what another model, cut at the same places, has computed in subgraph `s`, or replaces its own.
  void take_over(std::size_t s, const BodyRun& other);
  /// The last value that subgraph `s` passes on, which is the residual stream after a decoder layer. REQUIRES: `s` is
  /// the subgraph that ran last.
  at::Tensor stream(std::size_t s, std::size_t batch) const { return store_.get(ends_[s], batch); }
  std::int64_t features(std::size_t s) const { return run_.graph.values[ends_[s]].features; }
  /// REQUIRES: all subgraphs have run.
  std::vector<at::Tensor> results() const;

 private:
  /// Drops what nothing needs behind the subgraph before `s`.
  void drop_before(std::size_t s);

  const RunContext& run_;
  graph::ValueId wanted_;
  std::vector<BodyStage> stages_;
  std::vector<graph::ValueId> ends_;  // the last value that each subgraph passes on
  residency::ActivationStore store_;
};

}  // namespace layerpress::execution
