#include "layerpress/pipeline/step_collection.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

namespace layerpress::pipeline {

StepCollection::StepCollection(const execution::RunContext& run, const schedule::Step& step,
                               const std::vector<schedule::GroupWork>& works, const residency::Onload& parameters,
                               const Targets& targets)
    : run_(run), step_(step), statistics_(targets.statistics), finite_(run) {
  for (const auto& [value, statistics] : step.statistics) {
    Collected collected{statistics, {}, last_source(statistics, value)};
    for (const compression::StatisticPtr& statistic : statistics) {
      for (const compression::StatisticSource& source : statistic->sources(value)) collected.sources.insert(source);
      const std::string needed = statistic->parameter();
      if (!needed.empty()) collected.parameters[needed] = parameters.original(needed).to(run.placement.dtype);
    }
    collected_.emplace(value, std::move(collected));
  }
  for (const schedule::GroupWork& work : works)
    if (const auto own = collected_.find(work.input); own != collected_.end())
      for (const compression::StatisticPtr& statistic : work.owned_statistics)
        own->second.roots[std::string(statistic->name())] = work.division.owner;
  if (step.survey) {
    const graph::ValueId routing = step.survey->routing;
    execution::ExpertSurvey survey(run_.graph.values[routing].features, run_.min_tokens_per_expert);
    survey_ = &targets.surveys.insert_or_assign(routing, std::move(survey)).first->second;
  }
}

int StepCollection::Collected::root_of(const compression::Statistic& statistic) const {
  const auto found = roots.find(std::string(statistic.name()));
  return found == roots.end() ? Contribution::kAllRanks : found->second;
}

void StepCollection::take(graph::ValueId value, const at::Tensor& x, execution::BatchPiece& piece) {
  if (survey_ != nullptr) survey(value, x, piece);
  take_source({value}, x, piece);
}

void StepCollection::take_original(graph::ValueId value, const at::Tensor& x, execution::BatchPiece& piece) {
  const at::Tensor scale = statistics_.scale(value);
  take_source({value, true}, scale.defined() ? x.div(scale).to(x.scalar_type()) : x, piece);
}

void StepCollection::take_source(const compression::StatisticSource& source, const at::Tensor& x,
                                 execution::BatchPiece& piece) {
  for (auto& [value, collected] : collected_) {
    if (collected.sources.count(source) == 0 || piece.collected.count(value) != 0) continue;
    const auto& statistics = collected.statistics;
    const bool takes_all = piece.batch.counted.defined() &&
                           run_.graph.values[source.value].rows == graph::Rows::kTokens &&
                           std::any_of(statistics.begin(), statistics.end(),
                                       [](const auto& statistic) { return statistic->takes_all_tokens(); });
    collected.held[source] = counted(source.value, x, piece);
    if (takes_all) collected.all[source] = x;
    finite_.check(source.value, takes_all ? x : collected.held[source], piece);
    if (source == collected.last) add(value, collected, piece);
  }
}

/// The router's logits arrive before the routing.
void StepCollection::survey(graph::ValueId value, const at::Tensor& x, execution::BatchPiece& piece) {
  if (value == step_.survey->logits) logits_ = x;
  if (value != step_.survey->routing) return;
  const at::Tensor logits = std::exchange(logits_, {});
  piece.collect(value, [&] { survey_->add(logits, x); });
}

at::Tensor StepCollection::counted(graph::ValueId value, const at::Tensor& x,
                                   const execution::BatchPiece& piece) const {
  return execution::select_counted_rows(piece.batch, run_.graph.values[value].rows, x);
}

void StepCollection::take_nothing() {
  // In the order in which the others send theirs.
  for (const graph::Stage* stage : {&step_.stage, &step_.original})
    for (const graph::ValueId wanted : stage->wanted)
      for (const auto& [value, collected] : collected_) {
        if (collected.last != compression::StatisticSource{wanted, stage == &step_.original}) continue;
        std::vector<Contribution> nothing;
        for (const compression::StatisticPtr& statistic : collected.statistics)
          nothing.push_back({statistic, {}, collected.root_of(*statistic)});
        statistics_.add_last_and_merge(run_, value, nothing);
      }
}

void StepCollection::add(graph::ValueId value, Collected& collected, execution::BatchPiece& piece) {
  std::vector<Contribution> contributions;
  for (const compression::StatisticPtr& statistic : collected.statistics) {
    contributions.push_back({statistic, {}, collected.root_of(*statistic)});
    compression::StatisticInput& input = contributions.back().input;
    for (const compression::StatisticSource& source : statistic->sources(value)) {
      const auto all = statistic->takes_all_tokens() ? collected.all.find(source) : collected.all.end();
      input.values.push_back(all != collected.all.end() ? all->second : collected.held.at(source));
    }
    if (const auto needed = collected.parameters.find(statistic->parameter()); needed != collected.parameters.end())
      input.parameter = needed->second;
    if (statistic->looks_at_samples())
      input.samples = sample_rows(run_, piece.batch, run_.graph.values[value].rows, statistic->takes_all_tokens());
  }
  collected.held.clear();
  collected.all.clear();
  piece.collect(value, [&] {
    if (last_batch_ && piece.is_last)
      statistics_.add_last_and_merge(run_, value, contributions);
    else
      statistics_.add(run_, value, contributions);
  });
}

void StepCollection::finish() {
  finite_.finish();
  statistics_.finish_merging(run_);
  if (survey_ != nullptr) survey_->merge(run_.group);
}

}  // namespace layerpress::pipeline
