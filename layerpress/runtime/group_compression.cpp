#include "layerpress/runtime/group_compression.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "layerpress/kernels/finite.h"
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
  if (!kernels::all_finite(linear.weight))
    throw DamagedWeightsError(
        "[runtime.compress] tensor '{}.weight' holds NaN or infinite values; the checkpoint is damaged", linear.module);
}

/// The group's linears by who compresses them, in order.
std::vector<std::pair<const Modifier*, std::vector<graph::NodeId>>> by_modifier(const graph::LinearGroup& group,
                                                                                const Assignments& assignments) {
  std::vector<std::pair<const Modifier*, std::vector<graph::NodeId>>> parts;
  for (const graph::NodeId n : group.linears) {
    const Modifier* modifier = assignments.at(n).modifier;
    auto part = std::find_if(parts.begin(), parts.end(), [&](const auto& entry) { return entry.first == modifier; });
    if (part == parts.end()) part = parts.insert(parts.end(), {modifier, {}});
    part->second.push_back(n);
  }
  return parts;
}

}  // namespace

void compress_group(const RunContext& run, const graph::LinearGroup& group, const Assignments& assignments,
                    const Statistics* statistics, Onload& parameters, bool replace, ResultSink& sink) {
  for (const auto& [modifier, nodes] : by_modifier(group, assignments)) {
    std::vector<LinearWeight> linears;
    for (const graph::NodeId n : nodes) {
      const auto& operation = std::get<graph::Linear>(run.graph.nodes[n].operation);
      const Assignment& assignment = assignments.at(n);
      linears.push_back({run.graph.module_name(run.graph.nodes[n]), parameters.original(operation.weight),
                         assignment.scheme, assignment.scale_dtype});
      const auto phase = run.times.measure("check");
      require_finite(linears.back());
    }
    std::vector<CompressedModule> results = modifier->compress(linears, statistics, run.times);
    for (std::size_t i = 0; i < results.size(); ++i) {
      const graph::Node& node = run.graph.nodes[nodes[i]];
      {
        const auto phase = run.times.measure("dequantize");
        if (replace) {
          at::Tensor value = quant::dequantize(*linears[i].scheme, results[i].weight, run.placement.dtype);
          results[i].report.weight_error = kernels::relative_error(linears[i].weight, value);
          parameters.replace(std::get<graph::Linear>(node.operation).weight, std::move(value));
        } else {
          results[i].report.weight_error =
              quant::relative_error(*linears[i].scheme, linears[i].weight, results[i].weight);
        }
      }
      const auto phase = run.times.measure("write");
      sink.on_compressed(node, *linears[i].scheme, results[i]);
      results[i].weight = {};  // its codes are not needed any more
    }
  }
}

}  // namespace layerpress::runtime
