#include "layerpress/execution/stage_runner.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <set>
#include <unordered_map>
#include <utility>
#include <variant>

#include "layerpress/execution/fused_nodes.h"
#include "layerpress/execution/node_execution.h"

namespace layerpress::execution {

namespace {

/// The values of one batch during a stage.
class Frame {
 public:
  Frame(const graph::Stage& stage, const std::vector<FusedNode>& nodes, const OnWanted& on_wanted)
      : stage_(stage), on_wanted_(on_wanted) {
    for (const FusedNode& node : nodes)
      for (const graph::ValueId input : node.inputs) ++readers_[input];
    for (const graph::ValueId value : stage.keeps) ++readers_[value];
  }

  /// Adds a computed value, which is kept until its last reader.
  void set(graph::ValueId value, at::Tensor tensor) {
    if (std::find(stage_.wanted.begin(), stage_.wanted.end(), value) != stage_.wanted.end()) on_wanted_(value, tensor);
    if (readers_[value] > 0) values_[value] = std::move(tensor);
  }

  /// The inputs of a node. The last reader takes ownership of a value, unless the store also holds it.
  std::vector<at::Tensor> inputs_of(const FusedNode& node) {
    std::vector<at::Tensor> inputs;
    for (const graph::ValueId input : node.inputs) {
      inputs.push_back(values_.at(input));
      if (--readers_[input] == 0) values_.erase(input);
    }
    return inputs;
  }

  const at::Tensor& kept(graph::ValueId value) const { return values_.at(value); }

 private:
  const graph::Stage& stage_;
  const OnWanted& on_wanted_;
  std::unordered_map<graph::ValueId, at::Tensor> values_;
  std::unordered_map<graph::ValueId, int> readers_;
};

}  // namespace

void run_stage(const RunContext& run, const graph::Stage& stage, const residency::Onload& parameters,
               const Batch& batch, const StageValues& values, const StageOptions& options) {
  BatchContext context(batch, run.graph, run.placement, *run.rotary_tables);
  context.use_surveys(options.surveys);
  context.measure(run.contributions);
  const auto place = [&](graph::ValueId value) {
    return options.original == nullptr ? value : options.original->stored_as(value);
  };
  const std::vector<FusedNode> nodes = fused_nodes(run.graph, stage, run.placement);
  Frame frame(stage, nodes, options.on_wanted);
  double flops = 0;
  for (const graph::ValueId input : stage.inputs)
    if (!run.graph.is_input(input)) frame.set(input, values.get(place(input)).to(run.placement.device));
  for (const FusedNode& node : nodes) {
    const graph::Node& own = run.graph.nodes[node.node];
    std::vector<at::Tensor> inputs = frame.inputs_of(node);
    if (options.original != nullptr && std::holds_alternative<graph::RoundValues>(own.operation)) {
      frame.set(own.output, std::move(inputs[0]));  // the original model rounds nothing
      continue;
    }
    frame.set(own.output, execute_node(node, std::move(inputs), parameters, context));
    flops += node_flops(run.graph, node, batch);
  }
  run.times.add_flops(options.original == nullptr ? "forward" : "original", flops);
  for (const graph::ValueId value : stage.keeps) values.put(place(value), frame.kept(value));
}

void run_stage(const RunContext& run, const graph::Stage& stage, const residency::Onload& parameters, std::size_t batch,
               residency::ActivationStore& store, const StageOptions& options) {
  const StageValues values{
      .get = [&](graph::ValueId stored) { return store.get(stored, batch); },
      .put = [&](graph::ValueId stored, at::Tensor tensor) { store.put(stored, batch, std::move(tensor)); }};
  run_stage(run, stage, parameters, run.batches[batch], values, options);
}

}  // namespace layerpress::execution
