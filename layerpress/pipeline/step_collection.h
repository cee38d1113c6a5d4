#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <vector>

#include "layerpress/execution/batch_pieces.h"
#include "layerpress/pipeline/group_compression.h"
#include "layerpress/pipeline/statistics_store.h"
#include "layerpress/schedule/schedule.h"

namespace layerpress::pipeline {

/// What is collected while a step's stage runs: statistics of its groups' inputs, where they are not there yet, or a survey of
/// a router. Batch by batch the compressed model's values come first, then the original model's, where both are wanted.
class StepCollection {
 public:
  /// What statistics and surveys are added to.
  struct Targets {
    StatisticsStore& statistics;
    execution::ExpertSurveys& surveys;
  };
  /// `parameters`: with the weights of the step's groups, as they are in the original model.
  StepCollection(const execution::RunContext& run, const schedule::Step& step,
                 const std::vector<schedule::GroupWork>& works, const residency::Onload& parameters,
                 const Targets& targets);

  /// A value of samples of the batch under way, with all its rows; those that count are collected.
  void take(graph::ValueId value, const at::Tensor& x, execution::BatchPiece& piece);
  void take_reference(graph::ValueId value, const at::Tensor& x, execution::BatchPiece& piece);
  /// Which batch is under way.
  void begin(std::size_t batch) { last_batch_ = batch + 1 == run_.batches.size(); }
  /// A rank without samples adds nothing, and still takes part.
  void take_nothing(const std::vector<graph::ValueId>& wanted);
  /// When all batches have passed. Collective.
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
