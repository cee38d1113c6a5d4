#include <ATen/ATen.h>

#include <map>
#include <set>

#include "layerpress/pipeline/group_compression.h"
#include "layerpress/pipeline/pipelines.h"
#include "layerpress/pipeline/statistics_store.h"
#include "layerpress/pipeline/stored_ranges.h"
#include "layerpress/pipeline/transforms.h"

namespace layerpress::pipeline {
namespace {

class BasicRun {
 public:
  BasicRun(const execution::RunContext& run, const std::vector<graph::Subgraph>& subgraphs,
           const compression::Assignments& assignments, const std::vector<bool>& finished, ResultSink& sink)
      : run_(run), subgraphs_(subgraphs), assignments_(assignments), sink_(sink) {
    for (std::size_t s = 0; s < subgraphs_.size(); ++s) {
      finished_.push_back(!finished.empty() && finished[s]);
      groups_.push_back(finished_[s] ? std::vector<graph::LinearGroup>()
                                     : schedule::assigned_groups(run_.graph, subgraphs_[s], assignments_));
      transforms_.push_back(finished_[s] ? std::vector<std::size_t>()
                                         : schedule::transforms_of(subgraphs_[s], assignments_));
      stored_.push_back(finished_[s] ? std::vector<std::size_t>() : schedule::stored_of(subgraphs_[s], assignments_));
      for (const graph::ValueId value : schedule::statistics_used(step_of(s), assignments_))
        ++users_of_statistics_[value];
    }
  }

  void run() {
    steps_ = run_.batches.size() + subgraphs_.size();
    if (!users_of_statistics_.empty()) calibrate();
    for (std::size_t s = 0; s < subgraphs_.size(); ++s) {
      run_.control.step(run_.batches.size() + s, steps_, subgraphs_[s].name);
      if (finished_[s]) continue;
      compress_subgraph(s);
      store_parameters(s);
      const auto phase = run_.times.measure("write");
      sink_.on_subgraph_done(s, nullptr);
    }
    run_.control.step(steps_, steps_, "");
  }

 private:
  /// Each batch passes through the whole model at once, with one stage per value whose statistics are wanted.
  void calibrate() {
    graph::Subgraph whole{"model", {}};
    for (std::size_t n = 0; n < run_.graph.nodes.size(); ++n) whole.nodes.push_back(static_cast<graph::NodeId>(n));
    std::vector<std::vector<graph::ValueId>> wanted;
    for (const auto& [value, users] : users_of_statistics_) wanted.push_back({value});
    const std::vector<graph::Stage> stages = graph::split_stages(run_.graph, whole, wanted, {});
    std::vector<graph::NodeId> nodes;
    for (const graph::Stage& stage : stages) nodes.insert(nodes.end(), stage.nodes.begin(), stage.nodes.end());
    const residency::Onload parameters(run_.weights, graph::weight_names(run_.graph, nodes), run_.placement);
    // A rank without samples adds nothing but takes part.
    if (run_.batches.empty())
      for (const auto& [value, users] : users_of_statistics_)
        statistics_.add_last_and_merge(run_, value, contributions(value, {}));
    for (std::size_t b = 0; b < run_.batches.size(); ++b) {
      run_.control.step(b, steps_, fmt::format("batch {}", b));
      residency::ActivationStore store(run_.batches.size());
      for (std::size_t s = 0; s < wanted.size(); ++s) {
        run_.control.check_stop();
        const bool is_last = b + 1 == run_.batches.size();
        const auto take = [&](graph::ValueId value, const at::Tensor& all) {
          const execution::Batch& batch = run_.batches[b];
          const graph::Rows rows = run_.graph.values[value].rows;
          const auto all_contributions = contributions(
              value, {{execution::select_counted_rows(batch, rows, all)}, {}, sample_rows(run_, batch, rows)});
          if (is_last)
            statistics_.add_last_and_merge(run_, value, all_contributions);
          else
            statistics_.add(run_, value, all_contributions);
        };
        {
          const auto phase = run_.times.measure("forward");
          execution::run_stage(run_, stages[s], parameters, b, store, {.on_wanted = take});
        }
        drop_unread(stages, s, b, store);
      }
    }
    statistics_.finish_merging(run_);
  }

  /// The contributions of one value to all of its statistics, which have no other sources.
  std::vector<Contribution> contributions(graph::ValueId value, const compression::StatisticInput& input) const {
    std::vector<Contribution> all;
    for (const compression::StatisticPtr& statistic : wanted_.of(value)) all.push_back({statistic, input});
    return all;
  }

  /// Lets values go that no later stage reads.
  static void drop_unread(const std::vector<graph::Stage>& stages, std::size_t stage, std::size_t batch,
                          residency::ActivationStore& store) {
    std::vector<graph::ValueId> candidates = stages[stage].inputs;
    candidates.insert(candidates.end(), stages[stage].keeps.begin(), stages[stage].keeps.end());
    for (const graph::ValueId value : candidates) {
      bool read = false;
      for (std::size_t later = stage + 1; later < stages.size() && !read; ++later)
        for (const graph::ValueId input : stages[later].inputs) read = read || input == value;
      if (!read) store.drop(value, batch);
    }
  }

  /// All work on a subgraph as one step.
  schedule::Step step_of(std::size_t s) const {
    schedule::Step step;
    step.transforms = transforms_[s];
    step.groups = groups_[s];
    step.observed = schedule::observed_values(stored_[s], groups_[s], assignments_);
    return step;
  }

  /// What follows from values' ranges, after all groups have been compressed.
  void store_parameters(std::size_t s) {
    for (const graph::ValueId value : step_of(s).observed) {
      ranges_.take(value, statistics_);
      if (--users_of_statistics_[value] == 0) statistics_.drop(value);
    }
    ranges_.store(stored_[s], sink_);
  }

  std::vector<std::string> weights_of(const std::vector<graph::LinearGroup>& groups) const {
    std::vector<graph::NodeId> linears;
    for (const graph::LinearGroup& group : groups)
      linears.insert(linears.end(), group.linears.begin(), group.linears.end());
    return graph::weight_names(run_.graph, linears);
  }

  void compress_subgraph(std::size_t s) {
    const auto steps = schedule::in_steps(run_.graph, wanted_, groups_[s]);
    if (transforms_[s].empty()) {
      for (const std::vector<graph::LinearGroup>& groups : steps) {
        residency::Onload parameters(run_.weights, weights_of(groups), run_.placement);
        compress(groups, parameters);
      }
      return;
    }
    std::vector<std::string> names = weights_of(groups_[s]);
    std::set<std::string> changed;
    for (const std::size_t transform : transforms_[s])
      for (const std::string& name : assignments_.transforms[transform].site.place.parameters(run_.graph))
        changed.insert(name), names.push_back(name);
    residency::Onload parameters(run_.weights, names, run_.placement);
    apply_transforms(run_, transforms_[s], assignments_, parameters, statistics_);
    for (const std::string& weight : weights_of(groups_[s])) changed.erase(weight);
    store_changed(run_, {changed.begin(), changed.end()}, parameters, sink_);
    for (const std::size_t transform : transforms_[s])
      for (const auto& [value, statistics] : assignments_.transforms[transform].site.statistics)
        if (--users_of_statistics_[value] == 0) statistics_.drop(value);
    for (const std::vector<graph::LinearGroup>& groups : steps) compress(groups, parameters);
  }

  void compress(const std::vector<graph::LinearGroup>& groups, residency::Onload& parameters) {
    run_.control.check_stop();
    std::vector<schedule::GroupWork> works = divider_.divide(groups);
    for (schedule::GroupWork& work : works)
      if (statistics_.has(work.input)) work.statistics = &statistics_.get(work.input);
    compress_groups(run_, works, shared_, parameters, /*replace=*/false, sink_);
    for (const graph::LinearGroup& group : groups) ranges_.take(group.input, statistics_);
    for (const graph::LinearGroup& group : groups)
      if (schedule::wants_statistics(group, assignments_) && --users_of_statistics_[group.input] == 0)
        statistics_.drop(group.input);
  }

  const execution::RunContext& run_;
  const std::vector<graph::Subgraph>& subgraphs_;
  const compression::Assignments& assignments_;
  SharedValues shared_{run_, assignments_};
  ResultSink& sink_;
  std::vector<bool> finished_;
  std::vector<std::vector<graph::LinearGroup>> groups_;  // per subgraph
  std::vector<std::vector<std::size_t>> transforms_;     // per subgraph
  std::vector<std::vector<std::size_t>> stored_;         // per subgraph
  std::map<graph::ValueId, int> users_of_statistics_;    // groups that still want them; values in the graph's order
  schedule::ValueStatistics wanted_{run_.graph, assignments_};
  schedule::WorkDivider divider_{
      run_.graph, assignments_, {.ranks = run_.group.size(), .rates = run_.division_rates, .everywhere = true}};
  StatisticsStore statistics_;
  StoredRanges ranges_{run_.graph, assignments_};
  std::size_t steps_ = 0;
};

}  // namespace

void run_basic(const execution::RunContext& run, const std::vector<graph::Subgraph>& subgraphs,
               const compression::Assignments& assignments, const std::vector<bool>& finished, ResultSink& sink) {
  BasicRun(run, subgraphs, assignments, finished, sink).run();
}

}  // namespace layerpress::pipeline
