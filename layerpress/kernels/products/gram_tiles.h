#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace layerpress::kernels {

// Sums of products of tokens' features on a CPU, for inputs that has_value_type(): bf16 on bf16 dot products where the
// instruction set has them, everything else widened to fp32. Tokens are packed in chunks into panels of columns. Each tile of
// the result is summed by one thread in the order of the tokens, so that its bits depend neither on the threads nor on the
// tiles beside it. Tensors are contiguous.

/// Rows [first, last) of the result, a multiple of the panels' width or the end.
struct GramRows {
  std::int64_t first, last;
};

/// Rows of xᵀ x, the upper triangle.
void accumulate_triangle(at::Tensor& gram, const at::Tensor& x, const GramRows& rows);
/// Rows of (minuend - x)ᵀ x.
void accumulate_difference(at::Tensor& cross, const at::Tensor& minuend, const at::Tensor& x, const GramRows& rows);
/// leftᵀ x.
void accumulate_tiles(at::Tensor& sums, const at::Tensor& left, const at::Tensor& x);

/// Most memory that the first allocates for inputs of this width and dtype, in bytes; the others allocate it for each side.
std::uint64_t packed_chunk_bytes(std::int64_t features, at::ScalarType dtype);

}  // namespace layerpress::kernels
