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
    : input_(input), run_(input.run), baseline_(process_baseline(*run_.pipeline, run_.model.traced.graph)) {
  for (const SampleShape& sample : input.samples)
    baseline_ += static_cast<std::uint64_t>(sample.tokens) * sizeof(std::int64_t);
  constexpr std::uint64_t kRecordBytes = 5 << 10;  // what the run keeps of a compressed linear for its summary, as JSON
  baseline_ += run_.assignments.linears.size() * kRecordBytes;
}

namespace {

/// The values that stages keep, which determines everything else of a schedule whose patterns differ.
std::vector<graph::ValueId> kept_values(const schedule::Schedule& schedule) {
  std::vector<graph::ValueId> kept;
  for (const schedule::SubgraphSchedule& subgraph : schedule)
    for (const schedule::Step& step : subgraph.steps) {
      kept.insert(kept.end(), step.stage.keeps.begin(), step.stage.keeps.end());
      kept.push_back(graph::Graph::kInput);  // between the steps
    }
  return kept;
}

}  // namespace

std::vector<std::vector<bool>> PlanMaker::patterns() const {
  std::size_t groups = 0;
  for (const schedule::SubgraphSchedule& subgraph : make_schedule({}))
    groups = std::max(groups, subgraph.steps.size() - 1);
  constexpr std::size_t kMostGroups = 4;
  const std::size_t decided = std::min(groups, kMostGroups);
  std::vector<std::vector<bool>> patterns;
  std::set<std::vector<graph::ValueId>> seen;  // a stage may have nothing to keep, which makes patterns equal
  for (std::size_t bits = 0; bits < (1u << decided); ++bits) {
    std::vector<bool> pattern(groups, false);  // beyond those, everything is computed again
    for (std::size_t g = 0; g < decided; ++g) pattern[g] = (bits >> g & 1) != 0;
    if (seen.insert(kept_values(make_schedule(pattern))).second) patterns.push_back(std::move(pattern));
  }
  return patterns;
}

schedule::Schedule PlanMaker::make_schedule(const std::vector<bool>& keeps) const {
  schedule::ScheduleRequest request{run_.model.traced.graph, run_.subgraphs, run_.assignments, input_.finished,
                                    input_.available};
  request.owns = input_.owns;
  if (!keeps.empty())
    for (const graph::Subgraph& subgraph : run_.subgraphs) {
      request.keep_after.push_back(keeps);
      request.keep_after.back().resize(subgraph.nodes.size() + keeps.size(), false);
    }
  return run_.pipeline->make_schedule(request);
}

RunPlan PlanMaker::make(const Choice& choice) const {
  RunPlan plan;
  plan.batch_tokens = choice.batch_tokens;
  plan.batches = batches_of(input_.samples, choice.batch_tokens, run_.model.traced.graph);
  plan.activation_limit = choice.activation_limit;
  plan.activation_home = choice.home;
  plan.schedule = make_schedule(choice.keeps);
  plan.memory = plan_memory({.input = input_,
                             .batches = plan.batches,
                             .activation_home = choice.home,
                             .activation_limit = choice.activation_limit,
                             .baseline = baseline_},
                            plan.schedule);
  add_copies(plan);
  return plan;
}

void PlanMaker::add_spare(RunPlan& plan) const {
  const std::uint64_t share = run_.pipeline->takes_data ? 4 : 8;  // of the tensors' memory: few pages are new then
  std::uint64_t& peak = plan.memory.peak.host;
  plan.spare = std::min((peak - std::min(peak, baseline_)) / share, (run_.budget - std::min(run_.budget, peak)) / 2);
  peak += plan.spare;
}

/// Weights that stay as they are are read and written, too: with the first subgraph that reads them, or at the end.
void PlanMaker::add_copies(RunPlan& plan) const {
  const graph::Graph& graph = run_.model.traced.graph;
  std::set<std::string> done;
  for (const auto& [n, assignment] : run_.assignments.linears)
    done.insert(graph::weight_matrix(graph.nodes[n].operation).value().weight);
  for (std::size_t i = 0; i < plan.schedule.size(); ++i) {
    const schedule::SubgraphSchedule& planned = plan.schedule[i];
    if (!planned.subgraph) continue;
    const std::set<std::string> onloaded(planned.weights.begin(), planned.weights.end());
    for (const graph::NodeId n : run_.subgraphs[*planned.subgraph].nodes)
      for (const graph::WeightUse& use : graph::weights_of(graph.nodes[n].operation))
        if (done.insert(use.name).second && !planned.finished)
          add_copy(plan.memory.subgraphs[i], use.name, onloaded.count(use.name) != 0);
  }
  for (const std::string& name : run_.model.checkpoint->names())
    if (done.insert(name).second) add_copy(plan.memory.subgraphs.back(), name, false);
  for (const SubgraphPlan& subgraph : plan.memory.subgraphs)
    plan.memory.peak.host = std::max(plan.memory.peak.host, subgraph.peak.host);
}

void PlanMaker::add_copy(SubgraphPlan& subgraph, const std::string& name, bool is_read_anyway) const {
  if (run_.model.written_stacked.count(name) != 0) return;
  const checkpoint::Checkpoint& checkpoint = *run_.model.checkpoint;
  const std::uint64_t bytes = checkpoint.stored_bytes(name);
  const bool as_numbers = checkpoint.is_computed(name) && run_.model.kept.count(name) == 0;
  subgraph.written_bytes += as_numbers ? checkpoint.spec(name).nbytes() : bytes;
  if (checkpoint.is_computed(name))
    subgraph.peak.host = std::max(subgraph.peak.host, baseline_ + checkpoint.workspace_bytes(name) +
                                                          (as_numbers ? checkpoint.spec(name).nbytes() : bytes));
  if (is_read_anyway) return;
  subgraph.weight_bytes += bytes;
  subgraph.read_bytes += bytes;
}

}  // namespace layerpress::plan
