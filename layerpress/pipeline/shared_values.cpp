#include "layerpress/pipeline/shared_values.h"

#include <algorithm>

#include "layerpress/graph/weight_matrix.h"

namespace layerpress::pipeline {

void SharedValues::fill(const std::vector<graph::NodeId>& nodes, const compression::Statistics* statistics,
                        const residency::Onload& parameters, std::vector<compression::LinearWeight>& linears) {
  const auto read_by = [&](graph::NodeId n) { return graph_.nodes[n].inputs[0]; };
  for (std::size_t i = 0; i < nodes.size(); ++i) linears[i].shared = contribution(nodes[i], linears[i], statistics);
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (!linears[i].shared) continue;
    for (const graph::NodeId fused : assignments_.linears.at(nodes[i]).fused)
      linears[i].shared = std::max(
          *linears[i].shared,
          contribution(fused, parameters, read_by(fused) == read_by(nodes[i]) ? statistics : nullptr).value_or(0));
  }
}

std::optional<double> SharedValues::contribution(graph::NodeId n, const compression::LinearWeight& linear,
                                                 const compression::Statistics* statistics) {
  const auto known = contributions_.find(n);
  if (known != contributions_.end()) return known->second;
  return contributions_[n] = assignments_.linears.at(n).modifier->value_to_share(linear, statistics);
}

std::optional<double> SharedValues::contribution(graph::NodeId n, const residency::Onload& parameters,
                                                 const compression::Statistics* statistics) {
  const auto known = contributions_.find(n);
  if (known != contributions_.end()) return known->second;
  const graph::Node& node = graph_.nodes[n];
  const std::string name = graph::weight_matrix(node.operation).value().weight;
  const compression::Assignment& assignment = assignments_.linears.at(n);
  const bool changed = parameters.has_changed(name);
  const at::Tensor weight = changed ? parameters.original(name) : originals_.load(name);
  const std::optional<double> value =
      contribution(n, {graph_.module_name(node), weight, assignment.scheme, assignment.scale_dtype}, statistics);
  if (!changed) originals_.release(name);
  return value;
}

}  // namespace layerpress::pipeline
