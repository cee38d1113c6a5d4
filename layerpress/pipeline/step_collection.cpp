#include "layerpress/pipeline/step_collection.h"

#include <ATen/ATen.h>

#include <utility>

namespace layerpress::pipeline {

StepCollection::StepCollection(const execution::RunContext& run, const schedule::Step& step,
                               const std::vector<schedule::GroupWork>& works, const residency::Onload& parameters,
                               const Targets& targets)
    : run_(run), step_(step), statistics_(targets.statistics) {
  for (const graph::ValueId value : step.grams) roots_[value] = StatisticsStore::kAllRanks;
  for (const schedule::GroupWork& work : works)
    if (const auto own = roots_.find(work.input); own != roots_.end() && !work.everywhere)
      own->second = work.division.owner;
  for (const graph::ValueId value : step.grams) crosses_[value].square = step.crosses.count(value) != 0;
  for (const auto& [value, outputs] : step.output_crosses) {
    const auto& linear = std::get<graph::Linear>(run.graph.nodes[outputs.linear].operation);
    crosses_[value] = {false, parameters.original(linear.weight).to(run.placement.dtype), outputs.shares};
  }
  if (step.survey) {
    execution::ExpertSurvey survey(run_.graph.values[*step.survey].features, run_.min_tokens_per_expert);
    survey_ = &targets.surveys.insert_or_assign(*step.survey, std::move(survey)).first->second;
  }
}

void StepCollection::take(graph::ValueId value, const at::Tensor& x, execution::BatchPiece& piece) {
  if (survey_ != nullptr) survey(value, x, piece);
  hold_stream(value, x, piece, /*in_original=*/false);
  if (step_.grams.count(value) == 0 || piece.collected.count(value) != 0) return;
  if (step_.crosses.count(value) != 0)
    held_[value] = counted(value, x, piece);
  else
    add(value, {.x = counted(value, x, piece)}, piece);
}

void StepCollection::take_reference(graph::ValueId value, const at::Tensor& x, execution::BatchPiece& piece) {
  hold_stream(value, x, piece, /*in_original=*/true);
  if (auto held = held_.extract(value))
    add(value,
        {.x = std::move(held.mapped()),
         .reference = counted(value, x, piece),
         .stream = std::exchange(streams_[value], {})},
        piece);
}

/// The router's logits arrive before the routing.
void StepCollection::survey(graph::ValueId value, const at::Tensor& x, execution::BatchPiece& piece) {
  if (value != *step_.survey) {
    logits_ = x;
    return;
  }
  const at::Tensor logits = std::exchange(logits_, {});
  piece.collect(value, [&] { survey_->add(logits, x); });
}

void StepCollection::hold_stream(graph::ValueId value, const at::Tensor& x, const execution::BatchPiece& piece,
                                 bool in_original) {
  for (const auto& [input, outputs] : step_.output_crosses)
    if (outputs.stream == value)
      (in_original ? streams_[input].reference : streams_[input].compressed) = counted(value, x, piece);
}

at::Tensor StepCollection::counted(graph::ValueId value, const at::Tensor& x,
                                   const execution::BatchPiece& piece) const {
  return execution::select_counted_rows(piece.batch, run_.graph.values[value].rows, x);
}

void StepCollection::take_nothing(const std::vector<graph::ValueId>& wanted) {
  // In the order in which the others send theirs.
  for (const bool crossed : {false, true})
    for (const graph::ValueId value : wanted)
      if (step_.grams.count(value) != 0 && (step_.crosses.count(value) != 0) == crossed)
        statistics_.add_last_and_merge(run_, value, {}, crosses_.at(value), roots_.at(value));
}

void StepCollection::add(graph::ValueId value, const StatisticsStore::Input& input, execution::BatchPiece& piece) {
  piece.collect(value, [&] {
    if (last_batch_ && piece.is_last)
      statistics_.add_last_and_merge(run_, value, input, crosses_.at(value), roots_.at(value));
    else
      statistics_.add(run_, value, input, crosses_.at(value));
  });
}

void StepCollection::finish() {
  statistics_.finish_merging(run_);
  if (survey_ != nullptr) survey_->merge(run_.group);
}

}  // namespace layerpress::pipeline
