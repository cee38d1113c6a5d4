#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace layerpress::kernels {

/// The input x of a linear that writes into the residual stream, and the stream before it, both in the compressed model
/// and in the original model (`original`). All of one dtype.
struct ResidualInputs {
  at::Tensor x, original;              ///< [tokens, features]
  at::Tensor stream, stream_original;  ///< [tokens, rows]
};

/// The shares of the two differences that count.
struct ResidualShares {
  double inputs = 0;  ///< share of (X̃ - X)Wᵀ
  double stream = 0;  ///< share of r̃ - r
};

/// sums += EᵀX with E = inputs (X̃ - X)Wᵀ + stream (r̃ - r) for W [rows, features] of the inputs' dtype: what the original
/// stream has more behind the linear. sums is fp32 [rows, features]. Where bf16 is multiplied as such, the differences are
/// formed in fp32 and rounded once to the inputs' dtype, and so is E; else they stay in fp32. Products and sums are as in accumulate_product.
void accumulate_output_cross(at::Tensor& sums, const ResidualInputs& inputs, const at::Tensor& weight,
                             const ResidualShares& shares);

/// Most memory that accumulate_output_cross allocates on a device for inputs of this dtype, in bytes.
std::uint64_t output_cross_workspace_bytes(std::int64_t rows, std::int64_t features, at::ScalarType dtype,
                                           at::Device device, int threads);

}  // namespace layerpress::kernels
