#include <ATen/ATen.h>

#include <algorithm>

#include "layerpress/runtime/compression.h"
#include "layerpress/runtime/group_compression.h"

namespace layerpress::runtime {
namespace {

/// What one subgraph does, computed before it runs.
struct SubgraphPlan {
  std::vector<graph::LinearGroup> groups;
  std::vector<graph::Stage> stages;  // one per group, and the last
  /// For each stage, values that can go as soon as a batch has passed it (and the group's statistics are taken).
  std::vector<std::vector<graph::ValueId>> drops;
};

class SequentialRun {
 public:
  SequentialRun(const RunContext& run, const std::vector<graph::Subgraph>& subgraphs, const Assignments& assignments,
                ResultSink& sink)
      : run_(run), subgraphs_(subgraphs), assignments_(assignments), sink_(sink), store_(run.batches.size()) {
    for (const graph::Subgraph& subgraph : subgraphs_)
      for (const graph::LinearGroup& group : assigned_groups(run_.graph, subgraph, assignments_)) {
        if (!wants_gram(group, assignments_)) continue;
        wanted_.push_back(group.input);
        ++users_of_statistics_[group.input];
      }
    needed_ = graph::needed_nodes(run_.graph, wanted_);
    for (graph::Subgraph subgraph : subgraphs_) {
      std::erase_if(subgraph.nodes, [&](graph::NodeId n) { return !needed_[n] && assignments_.count(n) == 0; });
      running_.push_back(std::move(subgraph));
    }
    live_ = graph::liveness(run_.graph, running_);
    for (const Batch& batch : run_.batches) tokens_ += static_cast<std::uint64_t>(batch.tokens());
  }

  void run() {
    for (std::size_t s = 0; s < subgraphs_.size(); ++s) {
      run_.control.check_stop();
      run_.control.step(s, subgraphs_.size(), subgraphs_[s].name);
      run_subgraph(s);
      const auto phase = run_.times.measure("write");
      sink_.on_subgraph_done(subgraphs_[s]);
    }
    run_.control.step(subgraphs_.size(), subgraphs_.size(), "");
  }

 private:
  SubgraphPlan plan(std::size_t s) const {
    SubgraphPlan plan;
    plan.groups = assigned_groups(run_.graph, running_[s], assignments_);
    // Outputs that nothing runs on (the last layer's, say) are not computed.
    std::vector<graph::ValueId> outputs;
    for (const graph::ValueId value : live_[s].outputs)
      if (needed_[run_.graph.values[value].producer]) outputs.push_back(value);
    plan.stages = graph::split_stages(run_.graph, running_[s], plan.groups, outputs);

    std::vector<bool> needed_later(run_.graph.values.size(), true);
    for (const graph::ValueId value : live_[s].freed) needed_later[value] = false;
    plan.drops.resize(plan.stages.size());
    std::vector<bool> read_by_later_stage(run_.graph.values.size(), false);
    for (std::size_t stage = plan.stages.size(); stage-- > 0;) {
      const auto consider = [&](graph::ValueId value) {
        if (!needed_later[value] && !read_by_later_stage[value]) plan.drops[stage].push_back(value);
      };
      for (const graph::ValueId value : plan.stages[stage].keeps) consider(value);
      for (const graph::ValueId value : plan.stages[stage].inputs) consider(value);
      for (const graph::ValueId value : plan.stages[stage].inputs) read_by_later_stage[value] = true;
    }
    return plan;
  }

  void run_subgraph(std::size_t s) {
    const SubgraphPlan plan = this->plan(s);
    std::vector<graph::NodeId> nodes;
    for (const graph::Stage& stage : plan.stages) nodes.insert(nodes.end(), stage.nodes.begin(), stage.nodes.end());
    for (const graph::LinearGroup& group : plan.groups)
      nodes.insert(nodes.end(), group.linears.begin(), group.linears.end());
    auto loading = std::make_unique<PhaseTimes::Scope>(run_.times, "load");
    Onload parameters(run_.weights, weight_names(run_.graph, nodes), run_.placement);
    loading.reset();
    for (std::size_t g = 0; g < plan.groups.size(); ++g) {
      const graph::LinearGroup& group = plan.groups[g];
      run_batches(plan, g, parameters, &group);
      const bool has = statistics_.has(group.input);
      run_.control.phase("compress", 0, 1);
      compress_group(run_, group, assignments_, has ? &statistics_.get(group.input) : nullptr, parameters,
                     /*replace=*/true, sink_);
      if (has && --users_of_statistics_[group.input] == 0) statistics_.drop(group.input);
    }
    run_batches(plan, plan.groups.size(), parameters, nullptr);
    for (const graph::ValueId value : live_[s].freed) store_.drop(value);
  }

  /// Runs one stage for all batches, collecting the statistics of the group behind it.
  void run_batches(const SubgraphPlan& plan, std::size_t stage_index, const Onload& parameters,
                   const graph::LinearGroup* group) {
    const graph::Stage& stage = plan.stages[stage_index];
    const bool collect = group != nullptr && wants_gram(*group, assignments_) && !statistics_.has(group->input);
    if (stage.nodes.empty() && !collect) return;
    const char* name = collect ? "calibrate" : "propagate";
    std::uint64_t done = 0;
    run_.control.phase(name, done, tokens_);
    for (std::size_t b = 0; b < run_.batches.size(); ++b) {
      run_.control.check_stop();
      {
        const auto phase = run_.times.measure("forward");
        run_stage(run_, stage, parameters, b, store_);
      }
      if (collect) statistics_.add(run_, group->input, store_.get(group->input, b));
      for (const graph::ValueId value : plan.drops[stage_index]) store_.drop(value, b);
      done += static_cast<std::uint64_t>(run_.batches[b].tokens());
      run_.control.phase(name, done, tokens_);
    }
  }

  const RunContext& run_;
  const std::vector<graph::Subgraph>& subgraphs_;
  const Assignments& assignments_;
  ResultSink& sink_;
  ActivationStore store_;
  StatisticsStore statistics_;
  std::vector<graph::ValueId> wanted_;                 // values whose statistics are wanted
  std::vector<bool> needed_;                           // nodes on which one of them depends
  std::map<graph::ValueId, int> users_of_statistics_;  // groups that still want them
  std::vector<graph::Subgraph> running_;               // subgraphs without the nodes that nothing needs
  std::vector<graph::Liveness> live_;
  std::uint64_t tokens_ = 0;
};

}  // namespace

void run_sequential(const RunContext& run, const std::vector<graph::Subgraph>& subgraphs,
                    const Assignments& assignments, ResultSink& sink) {
  SequentialRun(run, subgraphs, assignments, sink).run();
}

}  // namespace layerpress::runtime
