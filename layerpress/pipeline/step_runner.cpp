#include "layerpress/pipeline/step_runner.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace layerpress::pipeline {

void StepRunner::run(const schedule::Step& step, std::size_t b, const BothParameters& parameters,
                     StepCollection& collection) {
  store_.read_ahead(step.stage.inputs, b + 1);
  collection.begin(b);
  const std::int64_t most_before = pieces_.most_tokens();
  std::vector<execution::BatchPiece> pieces =
      pieces_.run(run_.batches[b], can_be_cut(step, b),
                  [&](execution::BatchPiece& piece) { run_piece(step, b, piece, parameters, collection); });
  if (pieces_.most_tokens() < most_before)
    run_.control.message(LogLevel::kWarning,
                         fmt::format("[execution.memory] the device was out of memory; batches are run in pieces of at "
                                     "most {} tokens from here on",
                                     pieces_.most_tokens()));
  if (pieces.size() > 1) join(step, b, pieces, parameters.original != nullptr);
  for (const graph::ValueId value : step.drops) store_.drop(value, b);
}

/// Values are read from the store, and those of a whole batch are stored at once.
execution::StageValues StepRunner::values_of(std::size_t b, execution::BatchPiece& piece) const {
  const bool whole = piece.batch.offsets.size() == run_.batches[b].offsets.size();
  return {[this, b, whole, &piece](graph::ValueId stored) {
            if (whole) return store_.get(stored, b);
            // A value that the compressed model has just computed may also be an input of the original model.
            if (const auto kept = piece.kept.find(stored); kept != piece.kept.end()) return kept->second;
            // The last reader of a value may overwrite it; the stored value must not change.
            return store_.get(stored, b).narrow(0, piece.first_token, piece.batch.tokens()).clone();
          },
          [this, b, whole, &piece](graph::ValueId stored, at::Tensor rows) {
            if (whole)
              store_.put(stored, b, std::move(rows));
            else
              piece.kept[stored] = rows.to(store_.home());
          }};
}

void StepRunner::run_piece(const schedule::Step& step, std::size_t b, execution::BatchPiece& piece,
                           const BothParameters& parameters, StepCollection& collection) const {
  const execution::StageValues values = values_of(b, piece);
  const auto phase = run_.times.measure("forward");
  execution::run_stage(
      run_, step.stage, parameters.own, piece.batch, values,
      {.on_wanted = [&](auto value, const auto& x) { collection.take(value, x, piece); }, .surveys = &surveys_});
  if (parameters.original == nullptr) return;
  const auto own_phase = run_.times.measure("original");
  execution::run_stage(run_, step.original, *parameters.original, piece.batch, values,
                       {.on_wanted = [&](auto value, const auto& x) { collection.take_original(value, x, piece); },
                        .original = &*original_});
}

/// Stores the kept values of a batch that passed in pieces.
void StepRunner::join(const schedule::Step& step, std::size_t b, std::vector<execution::BatchPiece>& pieces,
                      bool with_original) const {
  const auto phase = run_.times.measure("forward");
  for (const graph::ValueId value : step.stage.keeps) store_.put(value, b, execution::join_kept(pieces, value));
  if (!with_original) return;
  for (const graph::ValueId value : step.original.keeps)
    store_.put(original_->stored_as(value), b, execution::join_kept(pieces, original_->stored_as(value)));
}

/// Whether the values that a step reads and keeps have one row per token, so that samples can be run separately.
bool StepRunner::can_be_cut(const schedule::Step& step, std::size_t b) const {
  const auto by_token = [&](graph::ValueId value) {
    return run_.graph.is_input(value) || run_.graph.values[value].rows == graph::Rows::kTokens;
  };
  const auto all_by_token = [&](const std::vector<graph::ValueId>& values) {
    return std::all_of(values.begin(), values.end(), by_token);
  };
  return run_.batches[b].images.count() == 0 && all_by_token(step.stage.inputs) && all_by_token(step.stage.keeps) &&
         all_by_token(step.original.inputs) && all_by_token(step.original.keeps);
}

}  // namespace layerpress::pipeline
