#include "layerpress/runtime/compression.h"
#include "layerpress/runtime/group_compression.h"

namespace layerpress::runtime {

void run_datafree(const RunContext& run, const std::vector<graph::Subgraph>& subgraphs, const Assignments& assignments,
                  ResultSink& sink) {
  for (std::size_t s = 0; s < subgraphs.size(); ++s) {
    run.control.step(s, subgraphs.size(), subgraphs[s].name);
    if (s + 1 < subgraphs.size())  // read ahead while this subgraph is computed
      for (const std::string& name : weight_names(run.graph, subgraphs[s + 1].nodes)) run.weights.will_need(name);
    for (const graph::LinearGroup& group : assigned_groups(run.graph, subgraphs[s], assignments))
      for (const graph::NodeId n : group.linears) {
        run.control.check_stop();
        Onload parameters(run.weights, weight_names(run.graph, {n}), run.placement);
        compress_group(run, {group.input, {n}}, assignments, nullptr, parameters, /*replace=*/false, sink);
      }
    const auto phase = run.times.measure("write");
    sink.on_subgraph_done(subgraphs[s]);
  }
  run.control.step(subgraphs.size(), subgraphs.size(), "");
}

}  // namespace layerpress::runtime
