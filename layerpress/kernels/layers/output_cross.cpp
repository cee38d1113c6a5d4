#include "layerpress/kernels/layers/output_cross.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "layerpress/kernels/products/gram.h"
#include "layerpress/kernels/products/product.h"

namespace layerpress::kernels {
namespace {

// Tokens whose E is computed at once.
constexpr std::int64_t kErrorTokens = 2048;

/// E in fp32.
at::Tensor weighted(const ResidualValues& part, const at::Tensor& bias, const ResidualShares& shares) {
  const auto copied = [](const at::Tensor& x) { return x.to(at::kFloat, /*non_blocking=*/false, /*copy=*/true); };
  at::Tensor sum = copied(part.output_original);
  if (bias.defined()) sum.sub_(bias);
  return sum.mul_(shares.output).add_(copied(part.stream_original).sub_(part.stream), shares.stream);
}

bool rounds(at::Device device, at::ScalarType dtype) { return !device.is_cpu() || multiplies_pairs(dtype); }

}  // namespace

void accumulate_output_cross(at::Tensor& sums, const ResidualValues& values, const at::Tensor& bias,
                             const ResidualShares& shares) {
  const at::ScalarType dtype = values.x.scalar_type();
  const bool rounded = rounds(values.x.device(), dtype);
  for (std::int64_t first = 0; first < values.x.size(0); first += kErrorTokens) {
    const std::int64_t count = std::min(kErrorTokens, values.x.size(0) - first);
    const auto some = [&](const at::Tensor& all) { return all.narrow(0, first, count); };
    const at::Tensor all =
        weighted({{}, some(values.stream), some(values.stream_original), some(values.output_original)}, bias, shares);
    accumulate_product(sums, rounded ? all.to(dtype) : all, some(values.x));
  }
}

std::uint64_t output_cross_workspace_bytes(std::int64_t rows, std::int64_t features, at::ScalarType dtype,
                                           at::Device device) {
  const auto elements = static_cast<std::uint64_t>(kErrorTokens * rows);
  const std::uint64_t rounded = rounds(device, dtype) ? elements * c10::elementSize(dtype) : 0;
  return elements * sizeof(float) +
         std::max(elements * sizeof(float), rounded + product_workspace_bytes(rows, features, dtype, device));
}

}  // namespace layerpress::kernels
