#pragma once

#include <cstddef>
#include <map>
#include <vector>

#include "layerpress/compression/trial.h"
#include "layerpress/execution/stage_runner.h"
#include "layerpress/schedule/schedule.h"

namespace layerpress::pipeline {

/// Runs trials of transforms on the batches, with values from the store.
class TrialRunner {
 public:
  /// Refers to all of them.
  TrialRunner(const execution::RunContext& run, const residency::ActivationStore& store,
              const execution::ExpertSurveys& surveys)
      : run_(run), store_(store), surveys_(surveys) {}

  /// The losses of the candidates, as compression::RunTrial says. `parameters` are the same before and after it.
  std::vector<double> run(const schedule::TrialStages& stages, const compression::Trial& trial,
                          residency::Onload& parameters) const;

 private:
  /// Values of one batch, by id.
  using Values = std::map<graph::ValueId, at::Tensor>;
  /// A batch, the values before the tried nodes, and the outputs with the present parameters.
  struct Prepared {
    std::size_t batch = 0;
    Values before, outputs;
  };
  double loss(const graph::Stage& tried, const Prepared& prepared, const residency::Onload& parameters) const;
  Values run_stage(const graph::Stage& stage, std::size_t b, const residency::Onload& parameters,
                   const Values& before) const;

  const execution::RunContext& run_;
  const residency::ActivationStore& store_;
  const execution::ExpertSurveys& surveys_;
};

}  // namespace layerpress::pipeline
