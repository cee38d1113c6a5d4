#include "layerpress/compression/transform.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "layerpress/kernels/solver/scaled_columns.h"

namespace layerpress::compression {
namespace {

/// Elements that are scaled at once, in fp32.
constexpr std::int64_t kElements = 1 << 20;

/// Divides the rows of a matrix, or the elements of a vector, by one number each.
at::Tensor divided_rows(const at::Tensor& from, const at::Tensor& by_row) {
  at::Tensor to = at::empty_like(from);
  const std::int64_t columns = std::max<std::int64_t>(1, from.dim() > 1 ? from.size(1) : 1);
  const std::int64_t step = std::max<std::int64_t>(1, kElements / columns);
  for (std::int64_t first = 0; first < from.size(0); first += step) {
    const std::int64_t count = std::min(step, from.size(0) - first);
    const at::Tensor divisors = by_row.narrow(0, first, count);
    to.narrow(0, first, count)
        .copy_(from.narrow(0, first, count).to(at::kFloat).div(from.dim() > 1 ? divisors.unsqueeze(1) : divisors));
  }
  return to;
}

/// Divides the channels of a source's parameter, a vector or the rows of a matrix. The model adds `offset` to it.
at::Tensor divided(const at::Tensor& parameter, const at::Tensor& scale, double offset) {
  if (offset != 0) return parameter.to(at::kFloat).add(offset).div(scale).sub(offset).to(parameter.scalar_type());
  return divided_rows(parameter, scale);
}

}  // namespace

std::map<std::string, at::Tensor> scaled_parameters(const graph::ScaleAbsorber& place, const at::Tensor& scale,
                                                    const TransformInput& input) {
  std::map<std::string, at::Tensor> changed;
  const graph::Node& source = input.graph.nodes[place.source];
  const at::Tensor own = scale_of(place.channels, scale, scale.size(0));  // channels that cannot be scaled keep 1
  const auto* norm = std::get_if<graph::RmsNorm>(&source.operation);
  for (const graph::WeightUse& use : graph::weights_of(source.operation))
    changed[use.name] = divided(input.parameter(use.name), own, norm == nullptr ? 0 : norm->weight_offset);
  for (const graph::ScaleReader& reader : place.readers) {
    const at::Tensor weight = input.parameter(reader.weight);
    changed[reader.weight] = kernels::scaled_columns(weight, scale_of(reader.columns, scale, weight.size(1)));
  }
  return changed;
}

at::Tensor scale_of(const std::vector<graph::ChannelRun>& runs, const at::Tensor& scale, std::int64_t features) {
  at::Tensor all = at::ones({features}, scale.options());
  for (const graph::ChannelRun& run : runs)
    all.narrow(0, run.first, run.count).copy_(scale.narrow(0, run.source, run.count));
  return all;
}

std::uint64_t Transform::candidate_workspace(const TransformSite&, const graph::Graph&, at::ScalarType,
                                             const at::Device&, const SchemeOf&) const {
  return 0;
}

std::uint64_t scaling_workspace_bytes() { return 2 * sizeof(float) * static_cast<std::uint64_t>(kElements); }

}  // namespace layerpress::compression
