#include "layerpress/modifier/quantizing/output_power.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "layerpress/kernels/products/gram.h"

namespace layerpress::modifier {

namespace {

constexpr std::int64_t kRowsOfPower = 256, kColumnsOfPower = 256;

/// The sum over rows of the power that their outputs would have if the inputs' channels were independent.
double independent_power(const at::Tensor& weight, const at::Tensor& gram) {
  at::Tensor sum = at::zeros({}, gram.options().dtype(at::kDouble));
  for (std::int64_t first = 0; first < weight.size(0); first += kRowsOfPower) {
    const std::int64_t count = std::min(kRowsOfPower, weight.size(0) - first);
    sum += weight.narrow(0, first, count).to(at::kFloat).square().mv(gram.diagonal()).sum(at::kDouble);
  }
  return sum.item<double>();
}

}  // namespace

double mean_output_power(const at::Tensor& weight, const at::Tensor& gram, std::int64_t tokens) {
  const std::int64_t step = (weight.size(0) + kRowsOfPower - 1) / kRowsOfPower;
  // Rows that are left out have as much more power than those that are taken as they would have with independent channels.
  double share = 1;
  if (step > 1) {
    const double all = independent_power(weight, gram);
    share = independent_power(weight.slice(0, 0, weight.size(0), step), gram) / all;
    if (!(share > 0)) share = 1;  // of zeros, or of what is not finite
  }
  const at::Tensor rows = weight.slice(0, 0, weight.size(0), step).to(at::kFloat), transposed = rows.t().contiguous();
  at::Tensor sum = at::zeros({}, rows.options().dtype(at::kDouble));
  for (std::int64_t first = 0; first < gram.size(0); first += kColumnsOfPower) {
    const std::int64_t last = std::min(first + kColumnsOfPower, gram.size(0));
    const at::Tensor columns = rows.slice(1, first, last), square = gram.slice(0, first, last).slice(1, first, last);
    // What is above the diagonal stands for what is below it, too.
    at::Tensor products = at::zeros_like(columns, at::MemoryFormat::Contiguous);
    if (first > 0)
      kernels::accumulate_product(products, transposed.slice(0, 0, first),
                                  gram.slice(0, 0, first).slice(1, first, last));
    kernels::accumulate_product(products, transposed.slice(0, first, last), square.triu(1));
    products.mul_(2).addcmul_(columns, square.diagonal()).mul_(columns);
    sum += products.sum(at::kDouble);
  }
  return sum.item<double>() / (share * static_cast<double>(weight.size(0) * tokens));
}

std::uint64_t output_power_workspace(std::int64_t columns) {
  const std::int64_t square = std::min(columns, kColumnsOfPower);
  // Rows and their transpose, products; of the matrix, a square and the blocks above it.
  const std::int64_t elements = 2 * kRowsOfPower * (columns + square) + square * (columns + 3 * square);
  return sizeof(float) * static_cast<std::uint64_t>(elements) +
         kernels::product_workspace_bytes(kRowsOfPower, square, at::kFloat, at::kCPU);
}

}  // namespace layerpress::modifier
