#include "layerpress/kernels/layers/vision.h"

#include <ATen/ATen.h>

#include <optional>

#include "layerpress/kernels/layers/attention_tiles.h"
#include "layerpress/kernels/products/product.h"

namespace layerpress::kernels {

at::Tensor full_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionShape& shape) {
  if (q.size(0) == 0) return at::empty_like(q);
  if (q.is_cpu() && has_value_type(q.scalar_type()) && !multiplies_pairs(q.scalar_type()))
    return full_attention_on_tiles(q, k, v, shape);
  // Heads that share keys become heads of one element of a batch: keys are then expanded instead of copied.
  const std::int64_t shared = shape.heads / shape.kv_heads;
  const at::Tensor queries = q.reshape({q.size(0), shape.kv_heads, shared, shape.head_dim}).permute({1, 2, 0, 3});
  const auto expanded = [&](const at::Tensor& x) {
    const at::Tensor heads = x.reshape({x.size(0), shape.kv_heads, shape.head_dim}).transpose(0, 1);
    return heads.unsqueeze(1).expand({shape.kv_heads, shared, x.size(0), shape.head_dim});
  };
  const at::Tensor mixed = at::scaled_dot_product_attention(queries, expanded(k), expanded(v), std::nullopt, 0.0,
                                                            /*is_causal=*/false, shape.scale);
  return mixed.permute({2, 0, 1, 3}).reshape({q.size(0), shape.heads * shape.head_dim});
}

at::Tensor unfold_patches(const at::Tensor& images, std::int64_t size) {
  const std::int64_t count = images.size(0), channels = images.size(1);
  const std::int64_t down = images.size(2) / size, across = images.size(3) / size;
  const at::Tensor filled = images.slice(2, 0, down * size).slice(3, 0, across * size);
  return filled.reshape({count, channels, down, size, across, size})
      .permute({0, 2, 4, 1, 3, 5})
      .reshape({count, down * across, channels * size * size});
}

}  // namespace layerpress::kernels
