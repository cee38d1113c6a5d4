#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace layerpress::kernels {

/// The input x of a linear that writes into the residual stream, in the compressed model; the stream before it in both models; and
/// the linear's output in the original model, bias included. All of one dtype.
struct ResidualValues {
  at::Tensor x;                                         ///< [tokens, features]
  at::Tensor stream, stream_original, output_original;  ///< [tokens, rows]
};

/// The shares that count of the original output, and of the streams' difference.
struct ResidualShares {
  double output = 0;
  double stream = 0;
};

/// sums += EᵀX with E = output X̃Wᵀ + stream (r̃ - r). sums is fp32 [rows, features]; `bias`, of any float dtype, is [rows] or undefined.
/// E is formed in fp32; where bf16 is multiplied as such, it is rounded once to the inputs' dtype. Products and sums are as in
/// accumulate_product.
void accumulate_output_cross(at::Tensor& sums, const ResidualValues& values, const at::Tensor& bias,
                             const ResidualShares& shares);

/// Most memory that accumulate_output_cross allocates on a device for inputs of this dtype, in bytes.
std::uint64_t output_cross_workspace_bytes(std::int64_t rows, std::int64_t features, at::ScalarType dtype,
                                           at::Device device);

}  // namespace layerpress::kernels
