#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <vector>

#include "layerpress/execution/batch_pieces.h"
#include "layerpress/pipeline/group_compression.h"
#include "layerpress/pipeline/statistics_store.h"
#include "layerpress/schedule/schedule.h"

namespace layerpress::pipeline {

/// Collects statistics or a survey while a step's stage runs: statistics of the groups' inputs that are not there yet,
/// or a router's survey. If both models' values are wanted, those of the compressed model come first in each batch.
class StepCollection {
 public:
  /// Where statistics and surveys are added.
  struct Targets {
    StatisticsStore& statistics;
    execution::ExpertSurveys& surveys;
  };
  /// `parameters` has the original weights of the step's groups.
  StepCollection(const execution::RunContext& run, const schedule::Step& step,
                 const std::vector<schedule::GroupWork>& works, const residency::Onload& parameters,
                 const Targets& targets);

  /// A value for samples of the current batch, with all its rows; only those that count are collected.
  void take(graph::ValueId value, const at::Tensor& x, execution::BatchPiece& piece);
  void take_reference(graph::ValueId value, const at::Tensor& x, execution::BatchPiece& piece);
  /// Starts a batch.
  void begin(std::size_t batch) { last_batch_ = batch + 1 == run_.batches.size(); }
  /// For a rank without samples, which adds nothing but takes part.
  void take_nothing(const std::vector<graph::ValueId>& wanted);
  /// To be called after all batches. Collective.
  void finish();

 private:
  at::Tensor counted(graph::ValueId value, const at::Tensor& x, const execution::BatchPiece& piece) const;
  void add(graph::ValueId value, const StatisticsStore::Input& input, execution::BatchPiece& piece);
  void survey(graph::ValueId value, const at::Tensor& x, execution::BatchPiece& piece);
  /// Holds the residual stream until what is made of it is there.
  void hold_stream(graph::ValueId value, const at::Tensor& x, const execution::BatchPiece& piece, bool in_original);

  const execution::RunContext& run_;
  const schedule::Step& step_;
  StatisticsStore& statistics_;
  std::map<graph::ValueId, int> roots_;        // which rank needs the statistics
  std::map<graph::ValueId, at::Tensor> held_;  // until the original model's values are there
  std::map<graph::ValueId, StatisticsStore::CrossWanted> crosses_;
  std::map<graph::ValueId, StatisticsStore::Stream> streams_;  // by the value whose linear writes into it
  execution::ExpertSurvey* survey_ = nullptr;
  at::Tensor logits_;
  bool last_batch_ = false;
};

}  // namespace layerpress::pipeline
