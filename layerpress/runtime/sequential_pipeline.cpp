#include <ATen/ATen.h>

#include <algorithm>

#include "layerpress/runtime/compression.h"
#include "layerpress/runtime/group_compression.h"
#include "layerpress/runtime/statistics_store.h"
#include "layerpress/runtime/weight_prefetch.h"

namespace layerpress::runtime {
namespace {

class SequentialRun {
 public:
  SequentialRun(const RunContext& run, const std::vector<SubgraphSchedule>& schedule, const Assignments& assignments,
                ActivationStore& store, ResultSink& sink)
      : run_(run), schedule_(schedule), assignments_(assignments), store_(store), sink_(sink), prefetch_(run.weights) {
    for (const SubgraphSchedule& subgraph : schedule_)
      for (const graph::LinearGroup& group : subgraph.groups)
        if (wants_gram(group, assignments_)) ++users_of_statistics_[group.input];
    for (const Batch& batch : run_.batches) tokens_ += static_cast<std::uint64_t>(batch.tokens());
  }

  void run() {
    fetch_from(0);
    for (std::size_t s = 0; s < schedule_.size(); ++s) {
      run_.control.check_stop();
      run_.control.step(s, schedule_.size(), schedule_[s].name);
      if (!schedule_[s].weights.empty()) run_subgraph(s);
      if (schedule_[s].finished) continue;
      const auto phase = run_.times.measure("write");
      sink_.on_subgraph_done(s, store_.boundary(s, schedule_[s].boundary));
      if (const auto durable = sink_.durable_subgraph()) store_.boundary_is_durable(*durable);
    }
    run_.control.step(schedule_.size(), schedule_.size(), "");
  }

 private:
  /// Starts to read the weights of the next subgraph that needs any.
  void fetch_from(std::size_t s) {
    while (s < schedule_.size() && schedule_[s].weights.empty()) ++s;
    if (s < schedule_.size()) prefetch_.start(schedule_[s].weights);
  }

  void run_subgraph(std::size_t s) {
    const SubgraphSchedule& plan = schedule_[s];
    auto loading = std::make_unique<PhaseTimes::Scope>(run_.times, "load");
    prefetch_.wait();
    Onload parameters(run_.weights, plan.weights, run_.placement);
    fetch_from(s + 1);
    loading.reset();
    for (std::size_t g = 0; g < plan.groups.size(); ++g) {
      const graph::LinearGroup& group = plan.groups[g];
      const std::vector<GroupWork> works = divide(group);
      run_batches(plan, g, parameters, &group, works.front().division.owner);
      const bool has = statistics_.has(group.input);
      run_.control.phase("compress", 0, 1);
      compress_group(run_, works, assignments_, has ? &statistics_.get(group.input) : nullptr, parameters,
                     /*replace=*/true, sink_);
      if (has && --users_of_statistics_[group.input] == 0) statistics_.drop(group.input);
    }
    run_batches(plan, plan.groups.size(), parameters, nullptr, StatisticsStore::kAllRanks);
  }

  /// Statistics that several groups use are not left to one rank.
  std::vector<GroupWork> divide(const graph::LinearGroup& group) {
    const auto idle = std::min_element(owned_.begin(), owned_.end());
    const auto users = users_of_statistics_.find(group.input);
    const bool shared = users != users_of_statistics_.end() && (users->second > 1 || statistics_.has(group.input));
    std::vector<GroupWork> works =
        divide_work(run_, group, assignments_, shared ? -1 : static_cast<int>(idle - owned_.begin()));
    if (works.front().division.owner >= 0) {
      const auto columns = static_cast<double>(run_.graph.values[group.input].features);
      *idle += columns * columns * columns;
    }
    return works;
  }

  /// Runs one stage for all batches, collecting the statistics of the group behind it, which `root` needs.
  void run_batches(const SubgraphSchedule& plan, std::size_t stage_index, const Onload& parameters,
                   const graph::LinearGroup* group, int root) {
    const graph::Stage& stage = plan.stages[stage_index];
    const std::vector<graph::ValueId>& drops = plan.drops[stage_index];
    const bool collect = group != nullptr && wants_gram(*group, assignments_) && !statistics_.has(group->input);
    // Without statistics to take, a stage that keeps nothing has no purpose: what it is run for is computed again later.
    if (collect || !stage.keeps.empty()) {
      const char* name = collect ? "calibrate" : "propagate";
      std::uint64_t done = 0;
      run_.control.phase(name, done, tokens_);
      // A rank without samples adds nothing, and still takes part.
      if (collect && run_.batches.empty()) statistics_.add_last_and_merge(run_, group->input, {}, root);
      for (std::size_t b = 0; b < run_.batches.size(); ++b) {
        run_.control.check_stop();
        at::Tensor wanted;
        {
          const auto phase = run_.times.measure("forward");
          store_.read_ahead(stage.inputs, b + 1);
          wanted = run_stage(run_, stage, parameters, b, store_);
        }
        const bool is_last = b + 1 == run_.batches.size();
        if (collect && !is_last) statistics_.add(run_, group->input, wanted);
        if (collect && is_last) statistics_.add_last_and_merge(run_, group->input, wanted, root);
        for (const graph::ValueId value : drops) store_.drop(value, b);
        done += static_cast<std::uint64_t>(run_.batches[b].tokens());
        run_.control.phase(name, done, tokens_);
      }
    }
    for (const graph::ValueId value : drops) store_.drop(value);
  }

  const RunContext& run_;
  const std::vector<SubgraphSchedule>& schedule_;
  const Assignments& assignments_;
  ActivationStore& store_;
  ResultSink& sink_;
  WeightPrefetch prefetch_;
  StatisticsStore statistics_;
  std::map<graph::ValueId, int> users_of_statistics_;  // groups that still want them
  std::vector<double> owned_ = std::vector<double>(static_cast<std::size_t>(run_.group.size()), 0.0);  // by rank
  std::uint64_t tokens_ = 0;
};

}  // namespace

void run_sequential(const RunContext& run, const std::vector<SubgraphSchedule>& schedule,
                    const Assignments& assignments, ActivationStore& store, ResultSink& sink) {
  SequentialRun(run, schedule, assignments, store, sink).run();
}

}  // namespace layerpress::runtime
