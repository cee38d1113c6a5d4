#include "layerpress/pipeline/schedule_runner.h"

#include <ATen/ATen.h>

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "layerpress/base/system/machine.h"
#include "layerpress/graph/facts/expert_inputs.h"
#include "layerpress/pipeline/group_compression.h"
#include "layerpress/pipeline/step_runner.h"
#include "layerpress/pipeline/stored_ranges.h"
#include "layerpress/pipeline/transforms.h"
#include "layerpress/residency/pinned_weights.h"
#include "layerpress/residency/weight_prefetch.h"
#include "layerpress/schedule/group_work.h"
#include "layerpress/schedule/statistics_users.h"

namespace layerpress::pipeline {
namespace {

class ScheduleRun {
 public:
  ScheduleRun(const execution::RunContext& run, const schedule::Schedule& schedule,
              const compression::Assignments& assignments, residency::ActivationStore& store, ResultSink& sink)
      : run_(run), schedule_(schedule), assignments_(assignments), store_(store), sink_(sink), prefetch_(run.weights) {
    for (const execution::Batch& batch : run_.batches) tokens_ += static_cast<std::uint64_t>(batch.tokens());
    for (const schedule::SubgraphSchedule& subgraph : schedule_) {
      all_ += subgraph.batch_by_batch ? run_.batches.size() : 1;
      done_ += subgraph.finished ? 1 : 0;
    }
  }

  void run() {
    fetch_from(0);
    for (std::size_t s = 0; s < schedule_.size(); ++s) {
      const schedule::SubgraphSchedule& plan = schedule_[s];
      run_.control.check_stop();
      run_.times.begin_section(plan.name);
      if (plan.has_work() || !plan.reads.empty()) {
        begin_step(plan);
        run_subgraph(s);
        return_freed_memory();
      }
      if (!plan.finished && !plan.batch_by_batch) ++done_;
      if (plan.finished || !plan.subgraph) continue;
      const auto phase = run_.times.measure("write");
      sink_.on_subgraph_done(*plan.subgraph,
                             plan.uses_results ? store_.boundary(*plan.subgraph, plan.boundary) : Json());
      if (const auto durable = sink_.durable_subgraph()) store_.boundary_is_durable(*durable);
    }
    run_.times.end_section();
    run_.control.step(all_, all_, "");
  }

 private:
  /// A resumed run begins, for those who watch, behind what is finished, also while it computes values of that again.
  void begin_step(const schedule::SubgraphSchedule& plan) const {
    if (!plan.batch_by_batch) run_.control.step(done_, all_, plan.finished ? "again " + plan.name : plan.name);
  }

  /// Starts reading the weights of the next subgraph that needs any.
  void fetch_from(std::size_t s) {
    const std::size_t next = schedule::next_that_reads(schedule_, s);
    if (next < schedule_.size()) prefetch_.start(schedule_[next].reads);
  }

  void run_subgraph(std::size_t s) {
    const schedule::SubgraphSchedule& plan = schedule_[s];
    auto loading = std::make_unique<PhaseTimes::Scope>(run_.times, "load");
    if (!plan.reads.empty()) prefetch_.wait();
    residency::Onload parameters(run_.weights, plan.weights, run_.placement);
    for (const std::string& weight : plan.weights)
      if (const auto kept = kept_.find(weight); kept != kept_.end()) parameters.replace(weight, kept->second);
    std::optional<residency::Onload> original;
    if (original_)
      original.emplace(run_.original != nullptr ? *run_.original : run_.weights, plan.original_weights, run_.placement);
    if (!plan.reads.empty()) fetch_from(s + 1);
    loading.reset();
    if (plan.batch_by_batch)
      calibrate(plan, parameters);
    else
      for (const schedule::Step& step : plan.steps) {
        run_.control.check_stop();
        std::vector<schedule::GroupWork> works = divider_.divide(plan.sharing, step.groups);
        run_batches(step, works, {parameters, original ? &*original : nullptr});
        apply_transforms(run_, step, assignments_, parameters, statistics_, trials_);
        if (!works.empty()) compress(plan, std::move(works), parameters);
        if (step.runs()) return_freed_memory();  // not after each of the thousands of steps without data
        for (const graph::ValueId value : schedule::statistics_used(step, assignments_))
          ranges_.take(value, statistics_);
        for (const graph::ValueId value : users_.unused_after(step)) statistics_.drop(value);
      }
    statistics_.forget_scales();
    ranges_.store(plan.stored, sink_);
    store_changed(run_, plan.changed_weights, parameters, sink_);
    for (const std::string& weight : plan.kept_weights) kept_[weight] = parameters.parameter(weight);
    for (const std::string& weight : plan.dropped_weights) kept_.erase(weight);
  }

  /// All steps for one batch, then for the next one. Collective.
  void calibrate(const schedule::SubgraphSchedule& plan, const residency::Onload& parameters) {
    std::deque<StepCollection> collections;
    for (const schedule::Step& step : plan.steps) {
      collections.emplace_back(run_, step, std::vector<schedule::GroupWork>(), parameters,
                               StepCollection::Targets{statistics_, surveys_});
      if (run_.batches.empty()) collections.back().take_nothing();
    }
    for (std::size_t b = 0; b < run_.batches.size(); ++b) {
      run_.control.step(done_++, all_, fmt::format("batch {}", b));
      for (std::size_t i = 0; i < plan.steps.size(); ++i) {
        run_.control.check_stop();
        step_runner_.run(plan.steps[i], b, {parameters}, collections[i]);
      }
    }
    for (StepCollection& collection : collections) collection.finish();
  }

  /// Collective, unless each rank has linears of its own.
  void compress(const schedule::SubgraphSchedule& plan, std::vector<schedule::GroupWork> works,
                residency::Onload& parameters) {
    run_.control.phase("compress", 0, 1);
    for (schedule::GroupWork& work : works) {
      if (statistics_.has(work.input)) work.statistics = &statistics_.get(work.input);
      work.routed_tokens = routed_tokens(work.input);
    }
    const bool alone = plan.sharing == schedule::Sharing::kLinears;
    compress_groups(alone ? alone_ : run_, works, shared_, parameters, plan.uses_results, sink_);
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
                   const BothParameters& parameters) {
    if (step.runs()) {
      StepCollection collection(run_, step, works, parameters.own, {statistics_, surveys_});
      const char* name = step.statistics.empty() && !step.survey ? "propagate" : "calibrate";
      std::uint64_t done = 0;
      run_.control.phase(name, done, tokens_);
      if (run_.batches.empty()) collection.take_nothing();
      for (std::size_t b = 0; b < run_.batches.size(); ++b) {
        run_.control.check_stop();
        step_runner_.run(step, b, parameters, collection);
        done += static_cast<std::uint64_t>(run_.batches[b].tokens());
        run_.control.phase(name, done, tokens_);
      }
      collection.finish();
    }
    for (const graph::ValueId value : step.drops) store_.drop(value);
  }

  const execution::RunContext& run_;
  dist::Group nobody_else_;
  const execution::RunContext alone_{run_.graph,   run_.weights, run_.placement, run_.batches,
                                     run_.control, run_.times,   nobody_else_};
  const schedule::Schedule& schedule_;
  const compression::Assignments& assignments_;
  SharedValues shared_{run_, assignments_};
  residency::ActivationStore& store_;
  ResultSink& sink_;
  residency::WeightPrefetch prefetch_;
  StatisticsStore statistics_;
  StoredRanges ranges_{run_.graph, assignments_};
  execution::ExpertSurveys surveys_;
  std::optional<graph::OriginalStream> original_ = schedule::original_stream(run_.graph, assignments_);
  StepRunner step_runner_{run_, store_, original_, surveys_};
  const TrialRunner trials_{run_, store_, surveys_};
  std::map<std::string, at::Tensor> kept_;  // compressed and dequantized weights that later subgraphs read
  schedule::StatisticsUsers users_{schedule_, assignments_};
  const schedule::WorkDivider divider_{run_.graph, assignments_, run_.group.size(), run_.division_rates};
  std::uint64_t tokens_ = 0;
  std::size_t done_ = 0, all_ = 0;  // steps of the progress
};

}  // namespace

void run_schedule(const execution::RunContext& run, const schedule::Schedule& schedule,
                  const compression::Assignments& assignments, residency::ActivationStore& store, ResultSink& sink) {
  if (run.placement.device.is_cpu()) return ScheduleRun(run, schedule, assignments, store, sink).run();
  const residency::PinnedWeights weights(run.weights);
  const execution::RunContext pinned{
      run.graph,    weights,        run.placement,      run.batches,    run.control,
      run.times,    run.group,      run.division_rates, run.all_tokens, run.min_tokens_per_expert,
      run.original, run.all_samples};
  ScheduleRun(pinned, schedule, assignments, store, sink).run();
}

}  // namespace layerpress::pipeline
