#include <ATen/ATen.h>

#include <map>

#include "layerpress/pipeline/group_compression.h"
#include "layerpress/pipeline/pipelines.h"
#include "layerpress/pipeline/statistics_store.h"

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
      for (const graph::LinearGroup& group : groups_[s])
        if (schedule::wants_gram(group, assignments_)) ++users_of_statistics_[group.input];
    }
  }

  void run() {
    steps_ = run_.batches.size() + subgraphs_.size();
    if (!users_of_statistics_.empty()) calibrate();
    for (std::size_t s = 0; s < subgraphs_.size(); ++s) {
      run_.control.step(run_.batches.size() + s, steps_, subgraphs_[s].name);
      if (finished_[s]) continue;
      for (const std::vector<graph::LinearGroup>& groups : schedule::in_steps(run_.graph, groups_[s])) compress(groups);
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
      for (const auto& [value, users] : users_of_statistics_) statistics_.add_last_and_merge(run_, value, {}, {});
    for (std::size_t b = 0; b < run_.batches.size(); ++b) {
      run_.control.step(b, steps_, fmt::format("batch {}", b));
      residency::ActivationStore store(run_.batches.size());
      for (std::size_t s = 0; s < wanted.size(); ++s) {
        run_.control.check_stop();
        const bool is_last = b + 1 == run_.batches.size();
        const auto take = [&](graph::ValueId value, const at::Tensor& all) {
          const at::Tensor x = execution::select_counted_rows(run_.batches[b], run_.graph.values[value].rows, all);
          if (is_last)
            statistics_.add_last_and_merge(run_, value, {.x = x}, {});
          else
            statistics_.add(run_, value, {.x = x}, {});
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

  void compress(const std::vector<graph::LinearGroup>& groups) {
    run_.control.check_stop();
    std::vector<graph::NodeId> linears;
    for (const graph::LinearGroup& group : groups)
      linears.insert(linears.end(), group.linears.begin(), group.linears.end());
    residency::Onload parameters(run_.weights, graph::weight_names(run_.graph, linears), run_.placement);
    std::vector<schedule::GroupWork> works =
        schedule::divide_work(run_.graph, groups, assignments_, run_.group.size(), run_.division_rates,
                              [](const graph::LinearGroup&) { return true; });
    for (schedule::GroupWork& work : works)
      if (statistics_.has(work.input)) work.statistics = &statistics_.get(work.input);
    compress_groups(run_, works, shared_, parameters, /*replace=*/false, sink_);
    for (const graph::LinearGroup& group : groups)
      if (statistics_.has(group.input) && --users_of_statistics_[group.input] == 0) statistics_.drop(group.input);
  }

  const execution::RunContext& run_;
  const std::vector<graph::Subgraph>& subgraphs_;
  const compression::Assignments& assignments_;
  SharedValues shared_{run_, assignments_};
  ResultSink& sink_;
  std::vector<bool> finished_;
  std::vector<std::vector<graph::LinearGroup>> groups_;  // per subgraph
  std::map<graph::ValueId, int> users_of_statistics_;    // groups that still want them; values in the graph's order
  StatisticsStore statistics_;
  std::size_t steps_ = 0;
};

}  // namespace

void run_basic(const execution::RunContext& run, const std::vector<graph::Subgraph>& subgraphs,
               const compression::Assignments& assignments, const std::vector<bool>& finished, ResultSink& sink) {
  BasicRun(run, subgraphs, assignments, finished, sink).run();
}

}  // namespace layerpress::pipeline
