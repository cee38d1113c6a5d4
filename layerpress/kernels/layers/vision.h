#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace layerpress::kernels {

/// The heads of an attention in which every query sees every key.
struct FullAttentionShape {
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;  ///< divides heads
  std::int64_t head_dim = 0;
  double scale = 1;
};

/// softmax(scale * q kᵀ) v for every head: q [queries, heads * head_dim], k and v [keys, kv_heads * head_dim] ->
/// [queries, heads * head_dim]. Scores are never all in memory. REQUIRES: keys > 0, or no queries.
at::Tensor full_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          const FullAttentionShape& shape);

/// Cuts images [images, channels, height, width] into patches of `size`² pixels, row by row, each in the order of a
/// convolution's weight: [images, patches, channels * size²]. Pixels that do not fill a patch are left out.
at::Tensor unfold_patches(const at::Tensor& images, std::int64_t size);

}  // namespace layerpress::kernels
