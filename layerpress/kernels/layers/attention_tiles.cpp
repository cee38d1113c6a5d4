#include "layerpress/kernels/layers/attention_tiles.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "layerpress/kernels/products/product.h"
#include "layerpress/kernels/tasks.h"

namespace layerpress::kernels {
namespace {

/// The task of one key/value head, without its position.
cpu::AttentionTask attention_task_of(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                     const AttentionShape& shape) {
  cpu::AttentionTask task;
  task.type = value_type(q.scalar_type());
  task.query_stride = q.size(1);
  task.key_stride = k.size(1);
  task.value_stride = v.size(1);
  task.output_stride = shape.heads * shape.value_dim();
  task.heads = shape.heads / shape.kv_heads;
  task.head_dim = shape.head_dim;
  task.value_dim = shape.value_dim();
  task.window = shape.window;
  task.scale = static_cast<float>(shape.scale);
  task.soft_cap = static_cast<float>(shape.soft_cap);
  return task;
}

/// The address of `column` in row `row`.
std::byte* place_in(const at::Tensor& x, std::int64_t row, std::int64_t column) {
  const auto size = static_cast<std::int64_t>(x.element_size());
  return static_cast<std::byte*>(x.data_ptr()) + (row * x.size(1) + column) * size;
}

/// Some queries, and the keys that they may see.
struct Sample {
  std::int64_t first_query, queries, first_key, keys;
};

/// A task for every sample and key/value head.
at::Tensor attend_samples(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                          const std::vector<Sample>& samples, const AttentionShape& shape, bool pairs, bool causal) {
  const at::Tensor q = query.contiguous(), k = key.contiguous(), v = value.contiguous();
  at::Tensor output = at::empty({q.size(0), shape.heads * shape.value_dim()}, q.options());
  const auto run = pairs ? cpu::table().attention_bf16 : cpu::table().attention_wide;
  cpu::AttentionTask common = attention_task_of(q, k, v, shape);
  common.causal = causal;
  std::int64_t most = 0;
  for (const Sample& sample : samples) most = std::max(most, sample.keys);
  const auto tasks = static_cast<std::int64_t>(samples.size()) * shape.kv_heads;
  share_tasks(tasks, [&](auto&& next) {
    // A tensor, because a plan limits the memory of tensors; aligned as ATen aligns all.
    const at::Tensor workspace = at::empty({attention_tiles_bytes(most, shape, pairs)}, at::kByte);
    for (std::int64_t item = next(); item < tasks; item = next()) {
      const Sample& sample = samples[static_cast<std::size_t>(item / shape.kv_heads)];
      const std::int64_t head = item % shape.kv_heads, first_head = head * common.heads;
      cpu::AttentionTask task = common;
      task.q = place_in(q, sample.first_query, first_head * shape.head_dim);
      task.k = place_in(k, sample.first_key, head * shape.head_dim);
      task.v = place_in(v, sample.first_key, head * shape.value_dim());
      task.output = place_in(output, sample.first_query, first_head * shape.value_dim());
      task.length = sample.queries;
      task.keys = sample.keys;
      task.workspace = workspace.data_ptr();
      if (task.length > 0) run(task);
    }
  });
  return output;
}

}  // namespace

bool has_pairs_attention(at::ScalarType dtype, const AttentionShape& shape) {
  return multiplies_pairs(dtype) && shape.head_dim % 16 == 0 && shape.soft_cap == 0 &&
         shape.value_dim() <= shape.head_dim;
}

at::Tensor attention_on_tiles(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                              const std::vector<std::int64_t>& offsets, const AttentionShape& shape, bool pairs) {
  std::vector<Sample> samples;
  for (std::size_t i = 0; i + 1 < offsets.size(); ++i) {
    const std::int64_t first = offsets[i], length = offsets[i + 1] - first;
    samples.push_back({first, length, first, length});
  }
  return attend_samples(q, k, v, samples, shape, pairs, /*causal=*/true);
}

at::Tensor full_attention_on_tiles(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                   const AttentionShape& shape) {
  return attend_samples(q, k, v, {{0, q.size(0), 0, k.size(0)}}, shape, /*pairs=*/false, /*causal=*/false);
}

std::int64_t attention_tiles_bytes(std::int64_t keys, const AttentionShape& shape, bool pairs) {
  if (pairs) return cpu::table().attention_workspace(keys, shape.head_dim);
  cpu::AttentionTask task;
  task.keys = keys;
  task.head_dim = shape.head_dim;
  task.value_dim = shape.value_dim();
  return cpu::table().attention_wide_workspace(task);
}

}  // namespace layerpress::kernels
