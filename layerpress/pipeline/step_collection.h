#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "layerpress/execution/batch_pieces.h"
#include "layerpress/pipeline/finite_values.h"
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

  /// A value for samples of the current batch, with all its rows; statistics of errors collect only those that count.
  void take(graph::ValueId value, const at::Tensor& x, execution::BatchPiece& piece);
  void take_original(graph::ValueId value, const at::Tensor& x, execution::BatchPiece& piece);
  /// Starts a batch.
  void begin(std::size_t batch) { last_batch_ = batch + 1 == run_.batches.size(); }
  /// For a rank without samples, which adds nothing but takes part.
  void take_nothing();
  /// To be called after all batches. Collective. Throws as FiniteValues does.
  void finish();

 private:
  /// The statistics of one value and their inputs.
  struct Collected {
    std::vector<compression::StatisticPtr> statistics;
    std::set<compression::StatisticSource> sources;
    compression::StatisticSource last;
    /// Sources that have been computed: the rows that count, and all, if there are others and a statistic takes them.
    std::map<compression::StatisticSource, at::Tensor> held{}, all{};
    std::map<std::string, at::Tensor> parameters{};  ///< in the computing dtype
    std::map<std::string, int> roots{};  ///< the ranks that need statistics, for those that not all ranks need
    int root_of(const compression::Statistic& statistic) const;
  };
  void take_source(const compression::StatisticSource& source, const at::Tensor& x, execution::BatchPiece& piece);
  at::Tensor counted(graph::ValueId value, const at::Tensor& x, const execution::BatchPiece& piece) const;
  /// To be called when all sources of a value's statistics have been computed.
  void add(graph::ValueId value, Collected& collected, execution::BatchPiece& piece);
  void survey(graph::ValueId value, const at::Tensor& x, execution::BatchPiece& piece);

  const execution::RunContext& run_;
  const schedule::Step& step_;
  StatisticsStore& statistics_;
  std::map<graph::ValueId, Collected> collected_;
  FiniteValues finite_;
  execution::ExpertSurvey* survey_ = nullptr;
  at::Tensor logits_;
  bool last_batch_ = false;
};

}  // namespace layerpress::pipeline
