#include "layerpress/runtime/group_compression.h"

#include <ATen/ATen.h>

#include "layerpress/kernels/gram.h"
#include "layerpress/kernels/relative_error.h"

namespace layerpress::runtime {

void StatisticsStore::add(const RunContext& run, graph::ValueId value, const at::Tensor& x) {
  const auto phase = run.times.measure("gram");
  Statistics& statistics = statistics_[value];
  if (!statistics.gram.defined()) statistics.gram = at::zeros({x.size(1), x.size(1)}, x.options().dtype(at::kFloat));
  kernels::accumulate_gram(statistics.gram, x);
  statistics.tokens += x.size(0);
  // One triangle: tokens x K x (K + 1) / 2 products, counted twice.
  run.times.add_flops(
      "gram", static_cast<double>(x.size(0)) * static_cast<double>(x.size(1)) * static_cast<double>(x.size(1) + 1));
}

std::vector<graph::LinearGroup> assigned_groups(const graph::Graph& graph, const graph::Subgraph& subgraph,
                                                const Assignments& assignments) {
  std::map<const graph::Node*, graph::NodeId> id_of;
  for (const graph::NodeId n : subgraph.nodes) id_of[&graph.nodes[n]] = n;
  return graph::linear_groups(graph, subgraph,
                              [&](const graph::Node& node) { return assignments.count(id_of.at(&node)) != 0; });
}

bool wants_gram(const graph::LinearGroup& group, const Assignments& assignments) {
  for (const graph::NodeId n : group.linears)
    if (assignments.at(n).modifier->statistics_wanted().gram) return true;
  return false;
}

namespace {

void require_finite(const LinearWeight& linear) {
  if (!at::isfinite(linear.weight.abs().max()).item<bool>())
    throw CheckpointError(
        "[runtime.compress] tensor '{}.weight' holds NaN or infinite values; the checkpoint is damaged", linear.module);
}

}  // namespace

void compress_group(const RunContext& run, const graph::LinearGroup& group, const Assignments& assignments,
                    const Statistics* statistics, Onload& parameters, bool replace, ResultSink& sink) {
  std::map<const Modifier*, std::vector<graph::NodeId>> by_modifier;
  std::vector<const Modifier*> order;
  for (const graph::NodeId n : group.linears) {
    auto& nodes = by_modifier[assignments.at(n).modifier];
    if (nodes.empty()) order.push_back(assignments.at(n).modifier);
    nodes.push_back(n);
  }
  for (const Modifier* modifier : order) {
    std::vector<LinearWeight> linears;
    for (const graph::NodeId n : by_modifier[modifier]) {
      const auto& operation = std::get<graph::Linear>(run.graph.nodes[n].operation);
      const Assignment& assignment = assignments.at(n);
      linears.push_back({run.graph.module_name(run.graph.nodes[n]), parameters.original(operation.weight),
                         assignment.scheme, assignment.scale_dtype});
      require_finite(linears.back());
    }
    std::vector<CompressedModule> results = modifier->compress(linears, statistics, run.times);
    for (std::size_t i = 0; i < results.size(); ++i) {
      const graph::Node& node = run.graph.nodes[by_modifier[modifier][i]];
      {
        const auto phase = run.times.measure("dequantize");
        at::Tensor value = quant::dequantize(*linears[i].scheme, results[i].weight, run.placement.dtype);
        results[i].report.weight_error = kernels::relative_error(linears[i].weight, value);
        if (replace) parameters.replace(std::get<graph::Linear>(node.operation).weight, std::move(value));
      }
      const auto phase = run.times.measure("write");
      sink.on_compressed(node, *linears[i].scheme, results[i]);
    }
  }
}

}  // namespace layerpress::runtime
