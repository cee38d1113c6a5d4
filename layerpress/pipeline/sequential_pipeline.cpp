#include <ATen/ATen.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "layerpress/execution/batch_pieces.h"
#include "layerpress/graph/expert_inputs.h"
#include "layerpress/pipeline/group_compression.h"
#include "layerpress/pipeline/pipelines.h"
#include "layerpress/pipeline/step_collection.h"
#include "layerpress/pipeline/stored_ranges.h"
#include "layerpress/pipeline/transforms.h"
#include "layerpress/residency/pinned_weights.h"
#include "layerpress/residency/weight_prefetch.h"

namespace layerpress::pipeline {
namespace {

class SequentialRun {
 public:
  SequentialRun(const execution::RunContext& run, const std::vector<schedule::SubgraphSchedule>& schedule,
                const compression::Assignments& assignments, residency::ActivationStore& store, ResultSink& sink)
      : run_(run), schedule_(schedule), assignments_(assignments), store_(store), sink_(sink), prefetch_(run.weights) {
    for (const schedule::SubgraphSchedule& subgraph : schedule_)
      for (const schedule::Step& step : subgraph.steps)
        for (const graph::ValueId value : schedule::statistics_used(step, assignments_)) ++users_of_statistics_[value];
    for (const execution::Batch& batch : run_.batches) tokens_ += static_cast<std::uint64_t>(batch.tokens());
  }

  void run() {
    fetch_from(0);
    for (std::size_t s = 0; s < schedule_.size(); ++s) {
      run_.control.check_stop();
      run_.control.step(s, schedule_.size(), schedule_[s].name);
      if (schedule_[s].has_work()) run_subgraph(s);
      if (schedule_[s].finished) continue;
      const auto phase = run_.times.measure("write");
      sink_.on_subgraph_done(s, store_.boundary(s, schedule_[s].boundary));
      if (const auto durable = sink_.durable_subgraph()) store_.boundary_is_durable(*durable);
    }
    run_.control.step(schedule_.size(), schedule_.size(), "");
  }

 private:
  /// Starts reading the weights of the next subgraph that needs any.
  void fetch_from(std::size_t s) {
    while (s < schedule_.size() && schedule_[s].weights.empty()) ++s;
    if (s < schedule_.size()) prefetch_.start(schedule_[s].weights);
  }

  void run_subgraph(std::size_t s) {
    const schedule::SubgraphSchedule& plan = schedule_[s];
    auto loading = std::make_unique<PhaseTimes::Scope>(run_.times, "load");
    if (!plan.weights.empty()) prefetch_.wait();
    residency::Onload parameters(run_.weights, plan.weights, run_.placement);
    for (const std::string& weight : plan.weights)
      if (const auto kept = kept_.find(weight); kept != kept_.end()) parameters.replace(weight, kept->second);
    std::optional<residency::Onload> original;
    if (original_)
      original.emplace(run_.original != nullptr ? *run_.original : run_.weights, plan.original_weights, run_.placement);
    if (!plan.weights.empty()) fetch_from(s + 1);
    loading.reset();
    for (const schedule::Step& step : plan.steps) {
      const std::vector<schedule::GroupWork> works = divider_.divide(step.groups);
      run_batches(step, works, parameters, original ? &*original : nullptr);
      apply_transforms(run_, step.transforms, assignments_, parameters, statistics_);
      if (!works.empty()) compress(works, parameters);
      for (const graph::ValueId value : schedule::statistics_used(step, assignments_)) ranges_.take(value, statistics_);
      for (const graph::ValueId value : schedule::statistics_used(step, assignments_))
        if (--users_of_statistics_[value] == 0) statistics_.drop(value);
    }
    ranges_.store(plan.stored, sink_);
    store_changed(run_, plan.changed_weights, parameters, sink_);
    for (const std::string& weight : plan.kept_weights) kept_[weight] = parameters.parameter(weight);
    for (const std::string& weight : plan.dropped_weights) kept_.erase(weight);
  }

  /// Collective.
  void compress(std::vector<schedule::GroupWork> works, residency::Onload& parameters) {
    run_.control.phase("compress", 0, 1);
    for (schedule::GroupWork& work : works) {
      if (statistics_.has(work.input)) work.statistics = &statistics_.get(work.input);
      work.routed_tokens = routed_tokens(work.input);
    }
    compress_groups(run_, works, shared_, parameters, /*replace=*/true, sink_);
  }

  /// The number of tokens routed to the expert for which the rows of `value` were selected, if they were.
  std::optional<std::int64_t> routed_tokens(graph::ValueId value) const {
    if (run_.graph.values[value].rows != graph::Rows::kSelected) return std::nullopt;
    const graph::Node& node = graph::selection_of(run_.graph, value);
    const auto survey = surveys_.find(node.inputs[2]);
    if (survey == surveys_.end()) return std::nullopt;
    return survey->second.routed()[std::get<graph::SelectTokens>(node.operation).expert].item<std::int64_t>();
  }

  /// Runs a step's stage for all batches and collects what it is run for.
  void run_batches(const schedule::Step& step, const std::vector<schedule::GroupWork>& works,
                   const residency::Onload& parameters, const residency::Onload* original) {
    if (step.runs()) {
      StepCollection collection(run_, step, works, parameters, {statistics_, surveys_, wanted_});
      const char* name = step.statistics.empty() && !step.survey ? "propagate" : "calibrate";
      std::uint64_t done = 0;
      run_.control.phase(name, done, tokens_);
      if (run_.batches.empty()) collection.take_nothing(step.stage.wanted);
      for (std::size_t b = 0; b < run_.batches.size(); ++b) {
        run_.control.check_stop();
        run_batch(step, b, parameters, original, collection);
        for (const graph::ValueId value : step.drops) store_.drop(value, b);
        done += static_cast<std::uint64_t>(run_.batches[b].tokens());
        run_.control.phase(name, done, tokens_);
      }
      collection.finish();
    }
    for (const graph::ValueId value : step.drops) store_.drop(value);
  }

  void run_batch(const schedule::Step& step, std::size_t b, const residency::Onload& parameters,
                 const residency::Onload* original, StepCollection& collection) {
    store_.read_ahead(step.stage.inputs, b + 1);
    collection.begin(b);
    std::vector<execution::BatchPiece> pieces =
        pieces_.run(run_.batches[b], can_be_cut(step, b),
                    [&](execution::BatchPiece& piece) { run_piece(step, b, piece, parameters, original, collection); });
    if (pieces.size() == 1) return;
    const auto phase = run_.times.measure("forward");
    for (const graph::ValueId value : step.stage.keeps) store_.put(value, b, execution::join_kept(pieces, value));
    if (original == nullptr) return;
    for (const graph::ValueId value : step.original.keeps)
      store_.put(original_->stored_as(value), b, execution::join_kept(pieces, original_->stored_as(value)));
  }

  void run_piece(const schedule::Step& step, std::size_t b, execution::BatchPiece& piece,
                 const residency::Onload& parameters, const residency::Onload* original, StepCollection& collection) {
    const bool whole = piece.batch.offsets.size() == run_.batches[b].offsets.size();
    const auto get = [&](graph::ValueId stored) {
      if (whole) return store_.get(stored, b);
      // A value that the compressed model has just computed may also be an input of the original model.
      if (const auto kept = piece.kept.find(stored); kept != piece.kept.end()) return kept->second;
      // The last reader of a value may overwrite it; the stored value must not change.
      return store_.get(stored, b).narrow(0, piece.first_token, piece.batch.tokens()).clone();
    };
    const auto put = [&](graph::ValueId stored, at::Tensor rows) {
      if (whole)
        store_.put(stored, b, std::move(rows));
      else
        piece.kept[stored] = rows.to(store_.home());
    };
    const execution::StageValues values{get, put};
    const auto phase = run_.times.measure("forward");
    execution::run_stage(
        run_, step.stage, parameters, piece.batch, values,
        {.on_wanted = [&](auto value, const auto& x) { collection.take(value, x, piece); }, .surveys = &surveys_});
    if (original == nullptr) return;
    const auto own_phase = run_.times.measure("original");
    execution::run_stage(run_, step.original, *original, piece.batch, values,
                         {.on_wanted = [&](auto value, const auto& x) { collection.take_reference(value, x, piece); },
                          .original = &*original_});
  }

  /// Whether the values that a step reads and keeps have one row per token, so that samples can be run separately.
  bool can_be_cut(const schedule::Step& step, std::size_t b) const {
    const auto by_token = [&](graph::ValueId value) {
      return run_.graph.is_input(value) || run_.graph.values[value].rows == graph::Rows::kTokens;
    };
    const auto all_by_token = [&](const std::vector<graph::ValueId>& values) {
      return std::all_of(values.begin(), values.end(), by_token);
    };
    return run_.batches[b].images.count() == 0 && all_by_token(step.stage.inputs) && all_by_token(step.stage.keeps) &&
           all_by_token(step.original.inputs) && all_by_token(step.original.keeps);
  }

  const execution::RunContext& run_;
  const std::vector<schedule::SubgraphSchedule>& schedule_;
  const compression::Assignments& assignments_;
  SharedValues shared_{run_, assignments_};
  residency::ActivationStore& store_;
  ResultSink& sink_;
  residency::WeightPrefetch prefetch_;
  schedule::ValueStatistics wanted_{run_.graph, assignments_};
  StatisticsStore statistics_;
  StoredRanges ranges_{run_.graph, assignments_};
  execution::ExpertSurveys surveys_;
  execution::BatchPieces pieces_;
  std::optional<graph::OriginalStream> original_ = schedule::original_stream(run_.graph, assignments_);
  std::map<std::string, at::Tensor> kept_;             // compressed and dequantized weights that later subgraphs read
  std::map<graph::ValueId, int> users_of_statistics_;  // groups that still want them
  schedule::WorkDivider divider_{run_.graph, assignments_, {.ranks = run_.group.size(), .rates = run_.division_rates}};
  std::uint64_t tokens_ = 0;
};

}  // namespace

void run_sequential(const execution::RunContext& run, const std::vector<schedule::SubgraphSchedule>& schedule,
                    const compression::Assignments& assignments, residency::ActivationStore& store, ResultSink& sink) {
  if (run.placement.device.is_cpu()) return SequentialRun(run, schedule, assignments, store, sink).run();
  const residency::PinnedWeights weights(run.weights);
  const execution::RunContext pinned{
      run.graph,    weights,        run.placement,      run.batches,    run.control,
      run.times,    run.group,      run.division_rates, run.all_tokens, run.min_tokens_per_expert,
      run.original, run.all_samples};
  SequentialRun(pinned, schedule, assignments, store, sink).run();
}

}  // namespace layerpress::pipeline
