#include <ATen/ATen.h>

#include "layerpress/base/machine.h"
#include "layerpress/base/text.h"
#include "layerpress/runtime/compression.h"
#include "layerpress/runtime/group_compression.h"

namespace layerpress::runtime {
namespace {

/// All groups of the model, each value once.
std::vector<graph::LinearGroup> all_groups(const graph::Graph& graph, const std::vector<graph::Subgraph>& subgraphs,
                                           const Assignments& assignments) {
  graph::Subgraph whole{"model", {}};
  for (const graph::Subgraph& subgraph : subgraphs)
    whole.nodes.insert(whole.nodes.end(), subgraph.nodes.begin(), subgraph.nodes.end());
  return assigned_groups(graph, whole, assignments);
}

}  // namespace

std::uint64_t gram_bytes(const graph::Graph& graph, const std::vector<graph::Subgraph>& subgraphs,
                         const Assignments& assignments) {
  std::uint64_t bytes = 0;
  for (const graph::LinearGroup& group : all_groups(graph, subgraphs, assignments)) {
    const auto features = static_cast<std::uint64_t>(graph.values[group.input].features);
    if (wants_gram(group, assignments)) bytes += features * features * sizeof(float);
  }
  return bytes;
}

void run_basic(const RunContext& run, const std::vector<graph::Subgraph>& subgraphs, const Assignments& assignments,
               ResultSink& sink) {
  const std::uint64_t needed = gram_bytes(run.graph, subgraphs, assignments), available = available_memory();
  if (run.placement.device.is_cpu() && available > 0 && needed > available)
    throw MemoryError(
        "[runtime.basic] the Gram matrices of all layers need {}, {} are free; use --pipeline sequential, which holds "
        "one layer's at a time",
        format_bytes(needed), format_bytes(available));

  // One stage whose kept values are the inputs of all groups; each batch passes the whole model at once.
  const std::vector<graph::LinearGroup> groups = all_groups(run.graph, subgraphs, assignments);
  graph::Subgraph whole{"model", {}};
  for (std::size_t n = 0; n < run.graph.nodes.size(); ++n) whole.nodes.push_back(static_cast<graph::NodeId>(n));
  std::vector<graph::LinearGroup> wanted;
  for (const graph::LinearGroup& group : groups)
    if (wants_gram(group, assignments)) wanted.push_back(group);
  const std::vector<graph::Stage> stages = graph::split_stages(run.graph, whole, wanted, {});

  StatisticsStore statistics;
  {
    std::vector<graph::NodeId> nodes;
    for (const graph::Stage& stage : stages) nodes.insert(nodes.end(), stage.nodes.begin(), stage.nodes.end());
    const Onload parameters(run.weights, weight_names(run.graph, nodes), run.placement);
    for (std::size_t b = 0; b < run.batches.size(); ++b) {
      run.control.step(b, run.batches.size() + groups.size(), fmt::format("batch {}", b));
      ActivationStore store(run.batches.size());
      for (std::size_t s = 0; s < stages.size(); ++s) {
        run.control.check_stop();
        {
          const auto phase = run.times.measure("forward");
          run_stage(run, stages[s], parameters, b, store);
        }
        if (s < wanted.size()) statistics.add(run, wanted[s].input, store.get(wanted[s].input, b));
      }
    }
  }
  for (std::size_t g = 0; g < groups.size(); ++g) {
    run.control.check_stop();
    run.control.step(run.batches.size() + g, run.batches.size() + groups.size(),
                     run.graph.module_name(run.graph.nodes[groups[g].linears.front()]));
    Onload parameters(run.weights, weight_names(run.graph, groups[g].linears), run.placement);
    const bool has = statistics.has(groups[g].input);
    compress_group(run, groups[g], assignments, has ? &statistics.get(groups[g].input) : nullptr, parameters,
                   /*replace=*/false, sink);
    statistics.drop(groups[g].input);
  }
  const auto phase = run.times.measure("write");
  for (const graph::Subgraph& subgraph : subgraphs) sink.on_subgraph_done(subgraph);
  run.control.step(run.batches.size() + groups.size(), run.batches.size() + groups.size(), "");
}

}  // namespace layerpress::runtime
