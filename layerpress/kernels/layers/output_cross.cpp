#include "layerpress/kernels/layers/output_cross.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "layerpress/kernels/layers/linear.h"
#include "layerpress/kernels/products/gram.h"
#include "layerpress/kernels/products/product.h"

namespace layerpress::kernels {
namespace {

// Tokens whose E is computed at once.
constexpr std::int64_t kErrorTokens = 2048, kWideErrorTokens = 1024;

/// E, rounded once to the inputs' dtype.
at::Tensor rounded_differences(const ResidualInputs& part, const at::Tensor& weight, const ResidualShares& shares) {
  at::Tensor difference = part.stream_original - part.stream;
  return at::addmm_out(difference, difference, part.original - part.x, weight.t(), shares.stream, shares.inputs);
}

/// E in fp32.
at::Tensor wide_differences(const ResidualInputs& part, const at::Tensor& weight, const ResidualShares& shares) {
  const auto difference = [](const at::Tensor& a, const at::Tensor& b) {
    return a.to(at::kFloat, /*non_blocking=*/false, /*copy=*/true).sub_(b);
  };
  at::Tensor written = kernels::linear(difference(part.original, part.x), weight);
  return written.mul_(shares.inputs).add_(difference(part.stream_original, part.stream), shares.stream);
}

bool rounds(at::Device device, at::ScalarType dtype) { return !device.is_cpu() || multiplies_pairs(dtype); }

}  // namespace

void accumulate_output_cross(at::Tensor& sums, const ResidualInputs& inputs, const at::Tensor& weight,
                             const ResidualShares& shares) {
  const bool rounded = rounds(inputs.x.device(), inputs.x.scalar_type());
  const std::int64_t tokens = inputs.x.size(0), most = rounded ? kErrorTokens : kWideErrorTokens;
  for (std::int64_t first = 0; first < tokens; first += most) {
    const std::int64_t count = std::min(most, tokens - first);
    const auto some = [&](const at::Tensor& all) { return all.narrow(0, first, count); };
    const ResidualInputs part{some(inputs.x), some(inputs.original), some(inputs.stream), some(inputs.stream_original)};
    accumulate_product(sums, (rounded ? rounded_differences : wide_differences)(part, weight, shares), part.x);
  }
}

std::uint64_t output_cross_workspace_bytes(std::int64_t rows, std::int64_t features, at::ScalarType dtype,
                                           at::Device device, int threads) {
  const std::uint64_t adding = product_workspace_bytes(rows, features, dtype, device);
  if (rounds(device, dtype))
    return static_cast<std::uint64_t>(kErrorTokens * (rows + features)) * c10::elementSize(dtype) + adding;
  // The stream's differences are added after the product, whose result takes as much memory.
  const std::uint64_t product = linear_workspace_bytes(kWideErrorTokens, features, at::kFloat, threads);
  return static_cast<std::uint64_t>(kWideErrorTokens * (2 * rows + features)) * sizeof(float) +
         std::max(adding, product);
}

}  // namespace layerpress::kernels
