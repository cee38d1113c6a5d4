#include "layerpress/compression/transform.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace layerpress::compression {
namespace {

/// Elements that are scaled at once, in fp32.
constexpr std::int64_t kElements = 1 << 20;

/// Divides the rows of a matrix, or the elements of a vector, by one factor each, or multiplies columns by one factor each.
void scale_rows(const at::Tensor& from, at::Tensor& to, const at::Tensor& by_row, const at::Tensor& by_column) {
  const std::int64_t columns = std::max<std::int64_t>(1, from.dim() > 1 ? from.size(1) : 1);
  const std::int64_t step = std::max<std::int64_t>(1, kElements / columns);
  for (std::int64_t first = 0; first < from.size(0); first += step) {
    const std::int64_t count = std::min(step, from.size(0) - first);
    at::Tensor rows = from.narrow(0, first, count).to(at::kFloat, /*non_blocking=*/false, /*copy=*/true);
    if (by_row.defined())
      rows.div_(rows.dim() > 1 ? by_row.narrow(0, first, count).unsqueeze(1) : by_row.narrow(0, first, count));
    if (by_column.defined()) rows.mul_(by_column);
    to.narrow(0, first, count).copy_(rows);
  }
}

/// Divides the channels of a source's parameter, a vector or the rows of a matrix. The model adds `offset` to it.
at::Tensor divided(const at::Tensor& parameter, const at::Tensor& scale, double offset) {
  if (offset != 0) return parameter.to(at::kFloat).add(offset).div(scale).sub(offset).to(parameter.scalar_type());
  at::Tensor result = at::empty_like(parameter);
  scale_rows(parameter, result, scale, {});
  return result;
}

at::Tensor spread(const std::vector<graph::ChannelRun>& runs, const at::Tensor& scale, std::int64_t features) {
  at::Tensor all = at::ones({features}, scale.options());
  for (const graph::ChannelRun& run : runs)
    all.narrow(0, run.first, run.count).copy_(scale.narrow(0, run.source, run.count));
  return all;
}

}  // namespace

at::Tensor multiplied_columns(const at::Tensor& weight, const at::Tensor& scale) {
  at::Tensor result = at::empty_like(weight);
  scale_rows(weight, result, {}, scale);
  return result;
}

std::map<std::string, at::Tensor> scaled_parameters(const graph::ScaleAbsorber& place, const at::Tensor& scale,
                                                    const TransformInput& input) {
  std::map<std::string, at::Tensor> changed;
  const graph::Node& source = input.graph.nodes[place.source];
  const at::Tensor own = spread(place.channels, scale, scale.size(0));  // channels that cannot be scaled keep 1
  const auto* norm = std::get_if<graph::RmsNorm>(&source.operation);
  for (const graph::WeightUse& use : graph::weights_of(source.operation))
    changed[use.name] = divided(input.parameter(use.name), own, norm == nullptr ? 0 : norm->weight_offset);
  for (const graph::ScaleReader& reader : place.readers) {
    const at::Tensor weight = input.parameter(reader.weight);
    changed[reader.weight] = multiplied_columns(weight, scale_of(reader, scale, weight.size(1)));
  }
  return changed;
}

at::Tensor scale_of(const graph::ScaledValue& value, const at::Tensor& scale, std::int64_t features) {
  return spread(value.channels, scale, features);
}

std::uint64_t Transform::candidate_workspace(const TransformSite&, const graph::Graph&, at::ScalarType,
                                             const at::Device&, const SchemeOf&) const {
  return 0;
}

at::Tensor scale_of(const graph::ScaleReader& reader, const at::Tensor& scale, std::int64_t columns) {
  return spread(reader.columns, scale, columns);
}

std::uint64_t scaling_workspace_bytes() { return 2 * sizeof(float) * static_cast<std::uint64_t>(kElements); }

}  // namespace layerpress::compression
