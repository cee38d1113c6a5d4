#include "layerpress/runtime/stage_runner.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <set>

#include "layerpress/runtime/node_execution.h"

namespace layerpress::runtime {

at::Tensor run_stage(const RunContext& run, const graph::Stage& stage, const Onload& parameters,
                     std::size_t batch_index, ActivationStore& store) {
  const Batch& batch = run.batches[batch_index];
  BatchContext context(batch, run.graph, run.placement);
  std::map<graph::ValueId, at::Tensor> frame;
  for (const graph::ValueId input : stage.inputs)
    if (input != graph::Graph::kInput) frame[input] = store.get(input, batch_index).to(run.placement.device);

  // How many readers each value still has inside the stage; what outlives it has one more.
  std::map<graph::ValueId, int> readers;
  for (const graph::NodeId n : stage.nodes)
    for (const graph::ValueId input : run.graph.nodes[n].inputs) ++readers[input];
  for (const graph::ValueId value : stage.keeps) ++readers[value];
  if (stage.wanted >= 0) ++readers[stage.wanted];
  double flops = 0;
  for (const graph::NodeId n : stage.nodes) {
    const graph::Node& node = run.graph.nodes[n];
    std::vector<at::Tensor> inputs;
    for (const graph::ValueId input : node.inputs)
      if (input != graph::Graph::kInput) inputs.push_back(frame.at(input));
    at::Tensor output = execute_node(node, inputs, parameters, context);
    flops += node_flops(node, batch);
    inputs.clear();
    for (const graph::ValueId input : node.inputs)
      if (--readers[input] == 0) frame.erase(input);
    frame[node.output] = std::move(output);
  }
  for (const graph::ValueId value : stage.keeps) store.put(value, batch_index, frame.at(value));
  run.times.add_flops("forward", flops);
  return stage.wanted >= 0 ? frame.at(stage.wanted) : at::Tensor();
}

std::vector<std::string> weight_names(const graph::Graph& graph, const std::vector<graph::NodeId>& nodes) {
  std::vector<std::string> names;
  std::set<std::string> seen;
  for (const graph::NodeId n : nodes)
    for (graph::WeightUse& use : graph::weights_of(graph.nodes[n].operation))
      if (seen.insert(use.name).second) names.push_back(std::move(use.name));
  return names;
}

std::vector<at::Tensor> run_to_value(const RunContext& run, const std::vector<graph::Subgraph>& all,
                                     graph::ValueId wanted) {
  const auto phase = run.times.measure("forward");
  const std::vector<bool> needed = graph::needed_nodes(run.graph, {wanted});
  std::vector<graph::Subgraph> subgraphs = all;
  for (graph::Subgraph& subgraph : subgraphs)
    std::erase_if(subgraph.nodes, [&](graph::NodeId n) { return !needed[n]; });
  std::vector<graph::Liveness> live = graph::liveness(run.graph, subgraphs);

  std::uint64_t tokens = 0;
  for (const Batch& batch : run.batches) tokens += static_cast<std::uint64_t>(batch.tokens());
  ActivationStore store(run.batches.size());
  for (std::size_t s = 0; s < subgraphs.size(); ++s) {
    run.control.step(s, subgraphs.size(), subgraphs[s].name);
    std::vector<graph::ValueId> outputs = live[s].outputs;
    const int producer = run.graph.values[wanted].producer;
    if (std::find(subgraphs[s].nodes.begin(), subgraphs[s].nodes.end(), producer) != subgraphs[s].nodes.end() &&
        std::find(outputs.begin(), outputs.end(), wanted) == outputs.end())
      outputs.push_back(wanted);
    const graph::Stage stage = graph::split_stages(run.graph, subgraphs[s], {}, outputs).front();
    const Onload parameters(run.weights, weight_names(run.graph, stage.nodes), run.placement);
    std::uint64_t done = 0;
    run.control.phase("forward", done, tokens);
    for (std::size_t b = 0; b < run.batches.size(); ++b) {
      run.control.check_stop();
      run_stage(run, stage, parameters, b, store);
      done += static_cast<std::uint64_t>(run.batches[b].tokens());
      run.control.phase("forward", done, tokens);
    }
    for (const graph::ValueId value : live[s].freed)
      if (value != wanted) store.drop(value);
  }
  run.control.step(subgraphs.size(), subgraphs.size(), "");
  std::vector<at::Tensor> results;
  for (std::size_t b = 0; b < run.batches.size(); ++b) results.push_back(store.get(wanted, b));
  return results;
}

}  // namespace layerpress::runtime
