#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace layerpress::kernels {

/// A factorized Gram matrix H = X'X with columns in the order in which GPTQ quantizes them.
///
/// With H = R Rᵀ, R upper triangular (the Cholesky factor of the reversed matrix), the GPTQ recursion reads: quantize
/// column j of W + E F, where E = W - dequantized for the columns before j and F[i, j] = R[i, j] / R[j, j]. This is the
/// LDL form of GPTQ (QuIP, arXiv 2307.13304, theorem 6): the same result as through the Cholesky factor of the inverse
/// (GPTQ, arXiv 2210.17323) for a third of its arithmetic, and without an inverse.
struct HessianFactor {
  at::Tensor order;     ///< int64 [K]: column order[j] is quantized j-th
  at::Tensor feedback;  ///< fp32 [K, K], F above, strictly upper
  at::Tensor pivots;    ///< fp32 [K]: R[j, j]²
};

struct FactorizeOptions {
  double dampening = 0.01;       ///< fraction of the mean diagonal added to the diagonal
  bool activation_order = true;  ///< columns by descending diagonal
  /// Columns of such groups stay together: groups by their largest diagonal, and columns inside a group. 0: no groups.
  std::int64_t group_columns = 0;
  bool double_precision = false;
};

/// Factorizes a Gram matrix (upper triangle, fp32 [K, K]). Columns that no token touched (zero diagonal) get a unit
/// diagonal, so that they are rounded to nearest and move nothing. Returns nothing when H is not positive definite.
///
/// On the CPU the factor is computed in place: beside `gram` there is one [K, K] matrix, the result's, in fp32 (or in
/// fp64, and kept in its memory, with double_precision).
std::optional<HessianFactor> factorize(const at::Tensor& gram, const FactorizeOptions& options);

/// Bytes that factorize allocates at most for K columns in single precision; on the CPU its result holds nearly all.
std::uint64_t factorize_workspace(std::int64_t columns, at::Device device = at::kCPU);
/// Of them, what the result holds.
std::uint64_t factor_bytes(std::int64_t columns);

/// The columns in the order in which they are quantized: as they are, or by descending diagonal, in groups or not.
at::Tensor column_order(const at::Tensor& diagonal, const FactorizeOptions& options);

/// Damps the diagonal [K] of a Gram matrix, or those [n, K] of several, in place, and makes untouched columns independent.
void prepare_diagonal(at::Tensor diagonal, double dampening);

}  // namespace layerpress::kernels
