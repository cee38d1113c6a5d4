#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "layerpress/kernels/layers/transformer.h"

namespace layerpress::kernels {

// Attention on a CPU by the instruction set's kernels, for values that has_value_type(). Every query's sums run over
// its keys in their order, so that its bits depend neither on the threads nor on other samples.

/// Whether the kernel for bf16 dot products runs it: `pairs` below. The one in fp32 runs everything.
bool has_pairs_attention(at::ScalarType dtype, const AttentionShape& shape);

/// Like attention(). REQUIRES: with `pairs`, heads of v are as wide as those of k.
at::Tensor attention_on_tiles(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                              const std::vector<std::int64_t>& offsets, const AttentionShape& shape, bool pairs);
/// Like full_attention().
at::Tensor full_attention_on_tiles(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                   const AttentionShape& shape);

/// Bytes that a thread of either function needs for this number of keys.
std::int64_t attention_tiles_bytes(std::int64_t keys, const AttentionShape& shape, bool pairs);

}  // namespace layerpress::kernels
