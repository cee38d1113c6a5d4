#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace layerpress::kernels {

/// A factorized Gram matrix H = XᵀX, with columns in the order in which GPTQ quantizes them.
///
/// With H = R Rᵀ, where R is upper triangular (the Cholesky factor of the reversed matrix), the GPTQ recursion is:
/// quantize column j of W + E F, where E = W - dequantized for the columns before j and F[i, j] = R[i, j] / R[j, j].
/// This is the LDL form of GPTQ (QuIP, arXiv 2307.13304, theorem 6). It has the same result as the form with the
/// Cholesky factor of the inverse (GPTQ, arXiv 2210.17323), but needs a third of the arithmetic and no inverse.
struct HessianFactor {
  at::Tensor order;     ///< int64 [K]: column order[j] is quantized j-th
  at::Tensor feedback;  ///< fp32 [K, K]: F, strictly upper triangular
  at::Tensor pivots;    ///< fp32 [K]: R[j, j]²
};

struct FactorizeOptions {
  double dampening = 0.01;       ///< fraction of the mean diagonal added to the diagonal
  bool activation_order = true;  ///< columns by descending diagonal
  /// Columns of groups of this size stay together: groups are ordered by their largest diagonal, columns inside a group
  /// by their own. 0: no groups.
  std::int64_t group_columns = 0;
  bool double_precision = false;
};

/// Factorizes a Gram matrix (upper triangle, fp32 [K, K]). Columns that no token touched (zero diagonal) get a unit
/// diagonal, so that they are rounded to nearest and do not affect other columns. Returns nothing if H is not positive
/// definite.
///
/// On the CPU the factor is computed in place: besides `gram`, only the result's [K, K] matrix is allocated, in fp32
/// (in fp64 with double_precision; its memory is then kept for the fp32 result).
std::optional<HessianFactor> factorize(const at::Tensor& gram, const FactorizeOptions& options);

/// Bytes that factorize allocates at most for K columns in single precision; on the CPU nearly all of them are the
/// result.
std::uint64_t factorize_workspace(std::int64_t columns, at::Device device = at::kCPU);
/// The part of these bytes that the result holds.
std::uint64_t factor_bytes(std::int64_t columns);

/// The order of quantization: unchanged, or by descending diagonal, with or without groups.
at::Tensor column_order(const at::Tensor& diagonal, const FactorizeOptions& options);

/// Damps the diagonal [K] of a Gram matrix, or the diagonals [n, K] of several, in place, and makes untouched columns
/// independent.
void prepare_diagonal(const at::Tensor& diagonal, double dampening);

}  // namespace layerpress::kernels
