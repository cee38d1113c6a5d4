#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace layerpress::kernels {

/// What a linear that writes into the residual stream reads (x), and that stream before it, in the compressed model and in
/// the original one (reference). All of one dtype.
struct ResidualInputs {
  at::Tensor x, reference;              ///< [tokens, features]
  at::Tensor stream, stream_reference;  ///< [tokens, rows]
};

/// How much of their differences counts.
struct ResidualShares {
  double inputs = 0;  ///< of what the linear makes of X̃ - X
  double stream = 0;  ///< of r̃ - r
};

/// sums += EᵀX with E = inputs (X̃ - X)Wᵀ + stream (r̃ - r) for W [rows, features] of the inputs' dtype: what the original
/// stream has more behind the linear. sums is fp32 [rows, features]. Where bf16 is multiplied as such, the differences are
/// formed in fp32 and rounded once to the inputs' dtype, and so is E; else they stay in fp32. Products and sums are as in accumulate_product.
void accumulate_output_cross(at::Tensor& sums, const ResidualInputs& inputs, const at::Tensor& weight,
                             const ResidualShares& shares);

/// Most memory that accumulate_output_cross allocates on a CPU for inputs of this dtype, in bytes.
std::uint64_t output_cross_workspace_bytes(std::int64_t rows, std::int64_t features, at::ScalarType dtype, int threads);

/// The same in double precision: the tests' reference.
at::Tensor output_cross_reference(const ResidualInputs& inputs, const at::Tensor& weight, const ResidualShares& shares);

}  // namespace layerpress::kernels
