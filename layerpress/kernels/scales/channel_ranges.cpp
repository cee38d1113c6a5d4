#include "layerpress/kernels/scales/channel_ranges.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <atomic>
#include <limits>

#include "layerpress/kernels/products/product.h"
#include "layerpress/kernels/tasks.h"

namespace layerpress::kernels {
namespace {

constexpr std::int64_t kLeastRows = 256, kMostTasks = 16;

}  // namespace

at::Tensor plain_channel_ranges(const at::Tensor& x) {
  return at::stack({at::amin(x, 0), at::amax(x, 0)}).to(at::kFloat);
}

at::Tensor channel_ranges(const at::Tensor& x) {
  if (!x.is_cpu() || !has_value_type(x.scalar_type()) || !x.is_contiguous()) return plain_channel_ranges(x);
  const std::int64_t rows = std::max(kLeastRows, (x.size(0) + kMostTasks - 1) / kMostTasks);
  const std::int64_t columns = x.size(1), tasks = (x.size(0) + rows - 1) / rows;
  at::Tensor ranges = at::full({tasks, 2, columns}, std::numeric_limits<float>::infinity(), at::kFloat);
  ranges.select(1, 1).neg_();
  auto* places = ranges.data_ptr<float>();
  std::atomic<bool> are_numbers{true};
  for_each_task(tasks, [&](std::int64_t task) {
    float* minima = places + task * 2 * columns;
    if (!cpu::table().channel_ranges(stored_rows(x, task * rows, rows), columns, minima, minima + columns))
      are_numbers = false;
  });
  if (!are_numbers) return plain_channel_ranges(x);
  return at::stack({ranges.select(1, 0).amin(0), ranges.select(1, 1).amax(0)});
}

std::uint64_t channel_ranges_workspace_bytes(std::int64_t columns) {
  return (2 * kMostTasks + 4) * sizeof(float) * static_cast<std::uint64_t>(columns);
}

}  // namespace layerpress::kernels
