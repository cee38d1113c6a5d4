#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>

namespace layerpress::kernels {

// Products with weights as they lie in checkpoints, [outputs, features]. On a CPU they run on tiles of our own: bf16 on bf16
// dot products where the instruction set has them, everything else in fp32, widened tile by tile. Every output is one sum in
// fp32 over the features in their order, so its bits depend neither on the threads nor on the rows and outputs computed
// beside it. On other devices ATen multiplies.

/// x weightᵀ + bias for x [..., features], weight [outputs, features] and bias [outputs], in x's dtype. On a CPU each may be
/// bf16, fp16 or fp32.
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias = std::nullopt);

/// gated_activation(function, linear(x, gate), linear(x, up)), with the same bits; on tiles, the two products are not
/// stored.
at::Tensor gated_linear(const std::string& function, const at::Tensor& x, const at::Tensor& gate, const at::Tensor& up);
/// Whether it runs so on a CPU.
bool fuses_gated_linear(const std::string& function, at::ScalarType dtype);

/// The most memory, in bytes, that either function needs on a CPU besides its result, for x [rows, features].
std::uint64_t linear_workspace_bytes(std::int64_t rows, std::int64_t features, at::ScalarType dtype, int threads);

}  // namespace layerpress::kernels
