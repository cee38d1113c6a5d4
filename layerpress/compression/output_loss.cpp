#include "layerpress/compression/output_loss.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>

#include "layerpress/kernels/layers/linear.h"

namespace layerpress::compression {
namespace {

constexpr std::int64_t kLossRows = 288;

}  // namespace

double output_loss(const at::Tensor& weight, const at::Tensor& result, const at::Tensor& gram) {
  double loss = 0;
  for (std::int64_t first = 0; first < weight.size(0); first += kLossRows) {
    const std::int64_t count = std::min(kLossRows, weight.size(0) - first);
    at::Tensor difference = weight.narrow(0, first, count).to(at::kFloat);
    if (result.defined()) difference = difference - result.narrow(0, first, count);
    // The Gram matrix is symmetric, so that its rows are those of its transpose.
    loss += kernels::linear(difference, gram).mul_(difference).sum(at::kDouble).item<double>();
  }
  return loss;
}

std::uint64_t output_loss_workspace(std::int64_t columns) {
  return static_cast<std::uint64_t>(3 * kLossRows * columns) * sizeof(float) +
         kernels::linear_workspace_bytes(kLossRows, columns, at::kFloat, at::get_num_threads());
}

double output_loss_flops(std::int64_t rows, std::int64_t columns) {
  return static_cast<double>(rows * columns) * static_cast<double>(columns);
}

}  // namespace layerpress::compression
