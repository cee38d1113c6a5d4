#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "layerpress/kernels/transformer.h"
#include "layerpress/kernels/vision.h"

namespace layerpress::kernels {

// Attention on a CPU by the instruction set's kernels, for values that has_value_type(). Every query's sums run over its keys in
// their order, so that its bits depend neither on the threads nor on other samples.

/// Whether the kernel for bf16 dot products runs it: `pairs` below. The one in fp32 runs everything.
bool has_pairs_attention(at::ScalarType dtype, const AttentionShape& shape);

/// As attention(). REQUIRES: heads of v as wide as those of k where `pairs`.
at::Tensor attention_on_tiles(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                              const std::vector<std::int64_t>& offsets, const AttentionShape& shape, bool pairs);
/// As full_attention().
at::Tensor full_attention_on_tiles(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                   const FullAttentionShape& shape);

/// What a thread of either needs for this many keys, in bytes.
std::int64_t attention_tiles_bytes(std::int64_t keys, const AttentionShape& shape, bool pairs);

}  // namespace layerpress::kernels
