#pragma once

#include <cstddef>
#include <optional>

#include "layerpress/execution/batch_pieces.h"
#include "layerpress/pipeline/step_collection.h"

namespace layerpress::pipeline {

/// The parameters of both models while a subgraph runs.
struct BothParameters {
  const residency::Onload& own;
  const residency::Onload* original = nullptr;  ///< null: the original model does not run
};

/// Runs the stage of a step for one batch, also in the original model if it runs beside the compressed one. Where the
/// memory of a device does not suffice, the batch passes in pieces.
class StepRunner {
 public:
  /// Refers to all of them.
  StepRunner(const execution::RunContext& run, residency::ActivationStore& store,
             const std::optional<graph::OriginalStream>& original, const execution::ExpertSurveys& surveys)
      : run_(run), store_(store), original_(original), surveys_(surveys) {}

  /// Reads and stores values between stages, passes wanted ones to the collection, and drops those that the step drops.
  void run(const schedule::Step& step, std::size_t b, const BothParameters& parameters, StepCollection& collection);

 private:
  void run_piece(const schedule::Step& step, std::size_t b, execution::BatchPiece& piece,
                 const BothParameters& parameters, StepCollection& collection) const;
  execution::StageValues values_of(std::size_t b, execution::BatchPiece& piece) const;
  bool can_be_cut(const schedule::Step& step, std::size_t b) const;
  void join(const schedule::Step& step, std::size_t b, std::vector<execution::BatchPiece>& pieces,
            bool with_original) const;

  const execution::RunContext& run_;
  residency::ActivationStore& store_;
  const std::optional<graph::OriginalStream>& original_;
  const execution::ExpertSurveys& surveys_;
  execution::BatchPieces pieces_;
};

}  // namespace layerpress::pipeline
