#include "layerpress/runtime/compression.h"
#include "layerpress/runtime/group_compression.h"
#include "layerpress/runtime/weight_prefetch.h"

namespace layerpress::runtime {
namespace {

/// Weights that are read for the next subgraph to be done, or nothing.
std::vector<std::string> next_weights(const RunContext& run, const std::vector<graph::Subgraph>& subgraphs,
                                      const std::vector<bool>& finished, std::size_t s) {
  while (s < subgraphs.size() && !finished.empty() && finished[s]) ++s;
  return s < subgraphs.size() ? weight_names(run.graph, subgraphs[s].nodes) : std::vector<std::string>();
}

}  // namespace

void run_datafree(const RunContext& run, const std::vector<graph::Subgraph>& subgraphs, const Assignments& assignments,
                  const std::vector<bool>& finished, ResultSink& sink) {
  WeightPrefetch prefetch(run.weights);
  prefetch.start(next_weights(run, subgraphs, finished, 0));
  for (std::size_t s = 0; s < subgraphs.size(); ++s) {
    run.control.step(s, subgraphs.size(), subgraphs[s].name);
    if (!finished.empty() && finished[s]) continue;
    {
      const auto phase = run.times.measure("load");
      prefetch.wait();
      prefetch.start(next_weights(run, subgraphs, finished, s + 1));
    }
    for (const graph::LinearGroup& group : assigned_groups(run.graph, subgraphs[s], assignments))
      for (const graph::NodeId n : group.linears) {
        run.control.check_stop();
        Onload parameters(run.weights, weight_names(run.graph, {n}), run.placement);
        compress_group(run, {group.input, {n}}, assignments, nullptr, parameters, /*replace=*/false, sink);
      }
    const auto phase = run.times.measure("write");
    sink.on_subgraph_done(s, nullptr);
  }
  run.control.step(subgraphs.size(), subgraphs.size(), "");
}

}  // namespace layerpress::runtime
