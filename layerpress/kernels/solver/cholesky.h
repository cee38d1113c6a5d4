#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace layerpress::kernels {

/// Replaces A, fp32 or fp64 [K, K] contiguous, by the upper triangular U with A = UᵀU. On the CPU it reads the upper triangle only.
/// Returns false if A is not positive definite.
bool factorize_upper(at::Tensor& matrix);

/// Replaces X, fp32 [K, R] contiguous, by A⁻¹ X. `factor` has U above the diagonal and its transpose below. A column's bits do not
/// depend on the columns beside it.
void solve_by_factor(at::Tensor& x, const at::Tensor& factor);

/// Bytes that factorize_upper allocates at most for fp32 on the CPU.
std::uint64_t factorize_upper_workspace(std::int64_t columns);
/// The same for solve_by_factor.
std::uint64_t solve_by_factor_workspace(std::int64_t columns, std::int64_t right_sides);

}  // namespace layerpress::kernels
