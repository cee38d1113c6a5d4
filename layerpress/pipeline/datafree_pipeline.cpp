#include "layerpress/pipeline/group_compression.h"
#include "layerpress/pipeline/pipelines.h"
#include "layerpress/pipeline/shared_values.h"
#include "layerpress/residency/weight_prefetch.h"

namespace layerpress::pipeline {
namespace {

/// The weights to read for the next subgraph that is not done. With several ranks, each reads the weights that it
/// compresses.
std::vector<std::string> next_weights(const execution::RunContext& run, const std::vector<graph::Subgraph>& subgraphs,
                                      const compression::Assignments& assignments, const std::vector<bool>& finished,
                                      const ResultSink& sink, std::size_t s) {
  while (s < subgraphs.size() && !finished.empty() && finished[s]) ++s;
  if (s >= subgraphs.size()) return {};
  std::vector<graph::NodeId> nodes;
  for (const graph::NodeId n : subgraphs[s].nodes)
    if (run.group.size() == 1 || (assignments.linears.count(n) != 0 && sink.owns(n))) nodes.push_back(n);
  return graph::weight_names(run.graph, nodes);
}

}  // namespace

void run_datafree(const execution::RunContext& run, const std::vector<graph::Subgraph>& subgraphs,
                  const compression::Assignments& assignments, const std::vector<bool>& finished, ResultSink& sink) {
  // The work of one rank does not involve the others.
  dist::Group nobody_else;
  const execution::RunContext alone{run.graph,   run.weights, run.placement, run.batches,
                                    run.control, run.times,   nobody_else};
  SharedValues shared(run, assignments);
  const schedule::WorkDivider divider(run.graph, assignments, {.everywhere = true});
  residency::WeightPrefetch prefetch(run.weights);
  prefetch.start(next_weights(run, subgraphs, assignments, finished, sink, 0));
  for (std::size_t s = 0; s < subgraphs.size(); ++s) {
    run.control.step(s, subgraphs.size(), subgraphs[s].name);
    if (!finished.empty() && finished[s]) continue;
    {
      const auto phase = run.times.measure("load");
      prefetch.wait();
      prefetch.start(next_weights(run, subgraphs, assignments, finished, sink, s + 1));
    }
    for (const graph::LinearGroup& group : schedule::assigned_groups(run.graph, subgraphs[s], assignments))
      for (const graph::NodeId n : group.linears) {
        if (!sink.owns(n)) continue;
        run.control.check_stop();
        residency::Onload parameters(run.weights, graph::weight_names(run.graph, {n}), run.placement);
        const std::vector<schedule::GroupWork> works = divider.divide({{group.input, {n}}});
        compress_groups(alone, works, shared, parameters, /*replace=*/false, sink);
      }
    const auto phase = run.times.measure("write");
    sink.on_subgraph_done(s, nullptr);
  }
  run.control.step(subgraphs.size(), subgraphs.size(), "");
}

}  // namespace layerpress::pipeline
