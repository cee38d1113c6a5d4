#include "layerpress/plan/plan_maker.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "layerpress/graph/weight_matrix.h"
#include "layerpress/plan/memory_plan.h"
#include "layerpress/schedule/schedule.h"

namespace layerpress::plan {

PlanMaker::PlanMaker(const PlanInput& input)
    : input_(input), run_(input.run), baseline_(process_baseline(run_.pipeline, run_.model.traced.graph)) {
  for (const SampleShape& sample : input.samples)
    baseline_ += static_cast<std::uint64_t>(sample.tokens) * sizeof(std::int64_t);
}

std::vector<std::vector<bool>> PlanMaker::patterns() const {
  std::size_t groups = 0;
  for (const schedule::SubgraphSchedule& subgraph : make_schedule({}))
    groups = std::max(groups, subgraph.steps.size() - 1);
  constexpr std::size_t kMostGroups = 4;
  const std::size_t decided = std::min(groups, kMostGroups);
  std::vector<std::vector<bool>> patterns;
  for (std::size_t bits = 0; bits < (1u << decided); ++bits) {
    std::vector<bool> pattern(groups, false);  // beyond those, everything is computed again
    for (std::size_t g = 0; g < decided; ++g) pattern[g] = (bits >> g & 1) != 0;
    patterns.push_back(std::move(pattern));
  }
  return patterns;
}

std::vector<schedule::SubgraphSchedule> PlanMaker::make_schedule(const std::vector<bool>& keeps) const {
  std::vector<std::vector<bool>> keep_after;
  if (!keeps.empty())
    for (std::size_t s = 0; s < run_.subgraphs.size(); ++s) {
      keep_after.push_back(keeps);
      keep_after.back().resize(run_.subgraphs[s].nodes.size() + keeps.size(), false);
    }
  return schedule::make_schedule({run_.model.traced.graph, run_.subgraphs, run_.assignments, input_.finished,
                                  input_.available, std::move(keep_after)});
}

RunPlan PlanMaker::make(const Choice& choice) const {
  RunPlan plan;
  plan.batch_tokens = choice.batch_tokens;
  plan.batches = batches_of(input_.samples, choice.batch_tokens, run_.model.traced.graph);
  plan.activation_limit = choice.activation_limit;
  plan.activation_home = choice.home;
  const PlanRequest request = {
      .graph = run_.model.traced.graph,
      .assignments = run_.assignments,
      .batches = plan.batches,
      .placement = run_.placement,
      .activation_home = choice.home,
      .activation_limit = choice.activation_limit,
      .stored_dtype = [&](const std::string& name) { return run_.model.checkpoint->spec(name).dtype; },
      .mapped = input_.mapped,
      .baseline = baseline_,
      .threads = run_.threads,
      .ranks = run_.ranks,
      .division_rates = input_.division_rates,
      .owns = input_.owns};
  switch (run_.pipeline) {
    case setup::Pipeline::kSequential:
      plan.schedule = make_schedule(choice.keeps);
      plan.memory = plan_sequential(request, plan.schedule);
      break;
    case setup::Pipeline::kBasic:
      plan.memory = plan_basic(request, run_.subgraphs, input_.finished);
      break;
    case setup::Pipeline::kDatafree:
      plan.memory = plan_datafree(request, run_.subgraphs, input_.finished);
      break;
  }
  add_copies(plan);
  return plan;
}

/// Weights that stay as they are are read and written, too: with the first subgraph that reads them, or at the end.
void PlanMaker::add_copies(RunPlan& plan) const {
  const graph::Graph& graph = run_.model.traced.graph;
  std::vector<SubgraphPlan>& planned = plan.memory.subgraphs;
  const std::size_t before = planned.size() - run_.subgraphs.size();  // entries for work on the whole model
  std::set<std::string> done;
  for (const auto& [n, assignment] : run_.assignments.linears)
    done.insert(graph::weight_matrix(graph.nodes[n].operation).value().weight);
  for (std::size_t s = 0; s < run_.subgraphs.size(); ++s) {
    const bool finished = !input_.finished.empty() && input_.finished[s];
    std::set<std::string> onloaded;
    if (!plan.schedule.empty()) onloaded.insert(plan.schedule[s].weights.begin(), plan.schedule[s].weights.end());
    for (const graph::NodeId n : run_.subgraphs[s].nodes)
      for (const graph::WeightUse& use : graph::weights_of(graph.nodes[n].operation))
        if (done.insert(use.name).second && !finished)
          add_copy(planned[before + s], use.name, onloaded.count(use.name) != 0);
  }
  for (const std::string& name : run_.model.checkpoint->names())
    if (done.insert(name).second) add_copy(planned.back(), name, false);
}

void PlanMaker::add_copy(SubgraphPlan& subgraph, const std::string& name, bool is_read_anyway) const {
  const std::uint64_t bytes = run_.model.checkpoint->spec(name).nbytes();
  subgraph.written_bytes += bytes;
  if (is_read_anyway) return;
  subgraph.weight_bytes += bytes;
  subgraph.read_bytes += bytes;
}

}  // namespace layerpress::plan
