#include "layerpress/gguf/blocks/block_rows.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <vector>

#include "layerpress/base/error.h"
#include "layerpress/kernels/products/wide_rows.h"
#include "layerpress/kernels/tasks.h"

namespace layerpress::gguf {
namespace {

constexpr std::int64_t kRowsPerTask = 8;

void require_whole_blocks(const BlockType& type, std::int64_t columns) {
  if (columns % type.block_values() != 0)
    throw InternalError("[gguf.block_rows] {} columns are no multiple of the {} values in a block of {}", columns,
                        type.block_values(), type.name());
}

/// Calls task(first, rows) for parts of the rows, on threads.
template <typename Task>
void for_parts_of_rows(std::int64_t rows, Task&& task) {
  kernels::for_each_task((rows + kRowsPerTask - 1) / kRowsPerTask, [&](std::int64_t part) {
    const std::int64_t first = part * kRowsPerTask;
    task(first, std::min(kRowsPerTask, rows - first));
  });
}

}  // namespace

at::Tensor decode_rows(const BlockType& type, const at::Tensor& blocks, std::int64_t columns) {
  require_whole_blocks(type, columns);
  const std::int64_t bytes = type.row_bytes(columns);
  if (blocks.dim() != 2 || blocks.size(1) != bytes || blocks.scalar_type() != at::kByte)
    throw InternalError("[gguf.decode_rows] {} columns of {} are not rows of {} bytes", columns, type.name(), bytes);
  const at::Tensor source = blocks.contiguous();
  at::Tensor rows = at::empty({blocks.size(0), columns}, at::kFloat);
  float* target = rows.data_ptr<float>();
  for_parts_of_rows(blocks.size(0), [&](std::int64_t first, std::int64_t count) {
    for (std::int64_t r = first; r < first + count; ++r)
      type.decode(source.const_data_ptr<std::uint8_t>() + r * bytes, columns, target + r * columns);
  });
  return rows;
}

at::Tensor round_rows(const BlockType& type, const at::Tensor& weight, const at::Tensor& importance) {
  const std::int64_t columns = weight.size(1);
  require_whole_blocks(type, columns);
  if (importance.defined() && (importance.numel() != columns || importance.scalar_type() != at::kFloat))
    throw InternalError("[gguf.round_rows] the importance of {} columns is not fp32 [{}]", columns, columns);
  const std::int64_t bytes = type.row_bytes(columns);
  const at::Tensor source = weight.contiguous(), weights = importance.defined() ? importance.contiguous() : importance;
  const float* per_column = weights.defined() ? weights.const_data_ptr<float>() : nullptr;
  at::Tensor blocks = at::empty({weight.size(0), bytes}, at::kByte);
  auto* target = blocks.data_ptr<std::uint8_t>();
  for_parts_of_rows(weight.size(0), [&](std::int64_t first, std::int64_t count) {
    std::vector<float> buffer;
    const float* rows = kernels::wide_rows(source, first, count, buffer);
    for (std::int64_t r = 0; r < count; ++r)
      type.round(rows + r * columns, columns, per_column, target + (first + r) * bytes);
  });
  return blocks;
}

}  // namespace layerpress::gguf
