#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace layerpress::kernels {

/// Replaces A, fp32 or fp64 [K, K] contiguous, by the upper triangular U with A = UᵀU. On the CPU it reads the upper triangle only.
/// Returns false if A is not positive definite.
bool factorize_upper(at::Tensor& matrix);

/// Bytes that factorize_upper allocates at most for fp32 on the CPU.
std::uint64_t factorize_upper_workspace(std::int64_t columns);

}  // namespace layerpress::kernels
