#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "layerpress/kernels/layers/transformer.h"

namespace layerpress::kernels {

/// softmax(scale * q kᵀ) v for every head, every query seeing every key: q [queries, heads * head_dim], k and v [keys, kv_heads *
/// head_dim] -> [queries, heads * head_dim]. Scores are never all in memory. REQUIRES: keys > 0, or no queries; neither a window nor a
/// cap nor other heads of v.
at::Tensor full_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionShape& shape);

/// Cuts images [images, channels, height, width] into patches of `size`² pixels, row by row, each in the order of a
/// convolution's weight: [images, patches, channels * size²]. Pixels that do not fill a patch are left out.
at::Tensor unfold_patches(const at::Tensor& images, std::int64_t size);

}  // namespace layerpress::kernels
