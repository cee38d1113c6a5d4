#include "layerpress/kernels/output_cross.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "layerpress/kernels/gram.h"

namespace layerpress::kernels {
namespace {

constexpr std::int64_t kErrorTokens = 2048;  // of which E is formed at once

}  // namespace

void accumulate_output_cross(at::Tensor& sums, const ResidualInputs& inputs, const at::Tensor& weight,
                             const ResidualShares& shares) {
  const std::int64_t tokens = inputs.x.size(0);
  for (std::int64_t first = 0; first < tokens; first += kErrorTokens) {
    const std::int64_t count = std::min(kErrorTokens, tokens - first);
    const auto part = [&](const at::Tensor& all) { return all.narrow(0, first, count); };
    at::Tensor difference = part(inputs.stream_reference) - part(inputs.stream);
    at::addmm_out(difference, difference, part(inputs.reference) - part(inputs.x), weight.t(), shares.stream,
                  shares.inputs);
    accumulate_product(sums, difference, part(inputs.x));
  }
}

std::uint64_t output_cross_workspace_bytes(std::int64_t rows, std::int64_t features, at::ScalarType dtype) {
  const std::int64_t differences = kErrorTokens * (rows + features);
  return static_cast<std::uint64_t>(differences) * c10::elementSize(dtype) + gram_workspace_bytes(rows, dtype) +
         gram_workspace_bytes(features, dtype);
}

at::Tensor output_cross_reference(const ResidualInputs& inputs, const at::Tensor& weight,
                                  const ResidualShares& shares) {
  const auto difference = [](const at::Tensor& a, const at::Tensor& b) {
    return a.to(at::kDouble) - b.to(at::kDouble);
  };
  const at::Tensor own = difference(inputs.reference, inputs.x).mm(weight.to(at::kDouble).t());
  const at::Tensor all = shares.inputs * own + shares.stream * difference(inputs.stream_reference, inputs.stream);
  return all.t().mm(inputs.x.to(at::kDouble));
}

}  // namespace layerpress::kernels
