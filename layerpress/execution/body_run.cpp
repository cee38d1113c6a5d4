#include "layerpress/execution/body_run.h"

#include <algorithm>
#include <utility>

namespace layerpress::execution {

std::vector<BodyStage> body_stages(const graph::Graph& graph, std::vector<graph::Subgraph> subgraphs,
                                   graph::ValueId wanted) {
  const std::vector<bool> needed = graph::needed_nodes(graph, {wanted});
  for (graph::Subgraph& subgraph : subgraphs)
    std::erase_if(subgraph.nodes, [&](graph::NodeId n) { return !needed[n]; });
  std::erase_if(subgraphs, [](const graph::Subgraph& subgraph) { return subgraph.nodes.empty(); });
  std::vector<graph::Liveness> live = graph::liveness(graph, subgraphs);
  std::vector<graph::ValueId>& last = live.back().outputs;
  if (std::find(last.begin(), last.end(), wanted) == last.end()) last.push_back(wanted);
  std::vector<BodyStage> stages;
  for (std::size_t s = 0; s < subgraphs.size(); ++s) {
    std::erase(live[s].freed, wanted);
    stages.push_back({subgraphs[s].name, graph::split_stages(graph, subgraphs[s], {}, live[s].outputs).front(),
                      std::move(live[s].freed), subgraphs[s].holds_target});
  }
  return stages;
}

BodyRun::BodyRun(const RunContext& run, std::vector<graph::Subgraph> subgraphs, graph::ValueId wanted,
                 residency::ActivationStore::Options store)
    : run_(run),
      wanted_(wanted),
      stages_(body_stages(run.graph, std::move(subgraphs), wanted)),
      store_(run.batches.size(), std::move(store)) {
  for (const BodyStage& part : stages_)
    ends_.push_back(*std::max_element(part.stage.keeps.begin(), part.stage.keeps.end()));
}

bool BodyRun::holds(std::size_t s, graph::NodeId node) const {
  const std::vector<graph::NodeId>& nodes = stages_[s].stage.nodes;
  return std::find(nodes.begin(), nodes.end(), node) != nodes.end();
}

void BodyRun::take_over(std::size_t s, const BodyRun& other) {
  const std::vector<graph::ValueId>&own = stages_.at(s).stage.keeps, &theirs = other.stages_.at(s).stage.keeps;
  if (own.size() != theirs.size())
    throw InternalError("[execution] {} passes on {} values, but {} in another model", name(s), own.size(),
                        theirs.size());
  drop_before(s);
  for (std::size_t i = 0; i < own.size(); ++i) {
    if (run_.graph.values[own[i]].features != other.run_.graph.values[theirs[i]].features)
      throw InternalError("[execution] {} passes on other values in another model", name(s));
    store_.drop(own[i]);
    for (std::size_t b = 0; b < run_.batches.size(); ++b) store_.put(own[i], b, other.store_.get(theirs[i], b));
  }
}

void BodyRun::drop_before(std::size_t s) {
  if (s > 0)
    for (const graph::ValueId value : stages_[s - 1].freed) store_.drop(value);
}

void BodyRun::run(std::size_t s) {
  drop_before(s);
  const graph::Stage& stage = stages_[s].stage;
  const residency::Onload parameters(run_.weights, graph::weight_names(run_.graph, stage.nodes), run_.placement);
  std::uint64_t done = 0, tokens = 0;
  for (const Batch& batch : run_.batches) tokens += static_cast<std::uint64_t>(batch.tokens());
  for (std::size_t b = 0; b < run_.batches.size(); ++b) {
    run_.control.check_stop();
    run_.control.phase("forward", done, tokens);
    run_stage(run_, stage, parameters, b, store_);
    done += static_cast<std::uint64_t>(run_.batches[b].tokens());
  }
}

std::vector<at::Tensor> BodyRun::results() const {
  std::vector<at::Tensor> results;
  for (std::size_t b = 0; b < run_.batches.size(); ++b) results.push_back(store_.get(wanted_, b));
  return results;
}

}  // namespace layerpress::execution
