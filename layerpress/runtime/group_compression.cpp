#include "layerpress/runtime/group_compression.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "layerpress/kernels/finite.h"
#include "layerpress/kernels/relative_error.h"
#include "layerpress/runtime/divided_compression.h"

namespace layerpress::runtime {

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

}  // namespace

LinearShape shape_of(const graph::Graph& graph, graph::NodeId linear, const Assignments& assignments) {
  const auto& operation = std::get<graph::Linear>(graph.nodes[linear].operation);
  const Assignment& assignment = assignments.at(linear);
  return {operation.out_features, operation.in_features, assignment.scale_dtype, assignment.scheme};
}

std::vector<GroupWork> divide_work(const RunContext& run, const graph::LinearGroup& group,
                                   const Assignments& assignments, int owner) {
  std::vector<GroupWork> works;
  for (const graph::NodeId n : group.linears) {
    const Modifier* modifier = assignments.at(n).modifier;
    auto work = std::find_if(works.begin(), works.end(), [&](const auto& entry) { return entry.modifier == modifier; });
    if (work == works.end()) work = works.insert(works.end(), {modifier, {}, {}});
    work->linears.push_back(n);
  }
  for (GroupWork& work : works) {
    std::vector<LinearShape> shapes;
    for (const graph::NodeId n : work.linears) shapes.push_back(shape_of(run.graph, n, assignments));
    work.division =
        divide_group(*work.modifier, shapes, run.group.size(), works.size() == 1 ? owner : -1, run.division_rates);
  }
  return works;
}

void compress_group(const RunContext& run, const std::vector<GroupWork>& works, const Assignments& assignments,
                    const Statistics* statistics, Onload& parameters, bool replace, ResultSink& sink) {
  for (const auto& [modifier, nodes, division] : works) {
    std::vector<LinearWeight> linears;
    for (const graph::NodeId n : nodes) {
      const auto& operation = std::get<graph::Linear>(run.graph.nodes[n].operation);
      const Assignment& assignment = assignments.at(n);
      linears.push_back({run.graph.module_name(run.graph.nodes[n]), parameters.original(operation.weight),
                         assignment.scheme, assignment.scale_dtype});
      const auto phase = run.times.measure("check");
      require_finite(linears.back());
    }
    std::vector<CompressedModule> results = compress_over_ranks(run, *modifier, linears, statistics, division);
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
