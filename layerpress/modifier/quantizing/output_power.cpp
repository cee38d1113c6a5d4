#include "layerpress/modifier/quantizing/output_power.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace layerpress::modifier {

namespace {

constexpr std::int64_t kRowsOfPower = 256, kColumnsOfPower = 256;

}  // namespace

double mean_output_power(const at::Tensor& weight, const at::Tensor& gram, std::int64_t tokens) {
  const std::int64_t step = (weight.size(0) + kRowsOfPower - 1) / kRowsOfPower;
  const at::Tensor rows = weight.slice(0, 0, weight.size(0), step).to(at::kFloat);
  at::Tensor sum = at::zeros({}, rows.options().dtype(at::kDouble));
  for (std::int64_t first = 0; first < gram.size(0); first += kColumnsOfPower) {
    const std::int64_t last = std::min(first + kColumnsOfPower, gram.size(0));
    const at::Tensor columns = rows.slice(1, first, last), square = gram.slice(0, first, last).slice(1, first, last);
    at::Tensor products = at::mm(columns, at::triu(square) + at::triu(square, 1).t());
    // The blocks above the square stand for those beside it, too.
    if (first > 0) products.addmm_(rows.slice(1, 0, first), gram.slice(0, 0, first).slice(1, first, last), 1, 2);
    products.mul_(columns);
    sum += products.sum(at::kDouble);
  }
  return sum.item<double>() / static_cast<double>(rows.size(0) * tokens);
}

std::uint64_t output_power_workspace(std::int64_t columns) {
  const std::int64_t square = std::min(columns, kColumnsOfPower);
  return sizeof(float) * static_cast<std::uint64_t>(kRowsOfPower * (columns + square) + 4 * square * square);
}

}  // namespace layerpress::modifier
