#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "layerpress/kernels/codebook.h"

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
  bool double_precision = false;
};

/// Factorizes a Gram matrix (upper triangle, fp32 [K, K]). Columns that no token touched (zero diagonal) get a unit
/// diagonal, so that they are rounded to nearest and move nothing. Returns nothing when H is not positive definite.
std::optional<HessianFactor> factorize(const at::Tensor& gram, const FactorizeOptions& options);

/// Scales per row and column group, in fp32 (already rounded to what is stored).
struct ColumnScales {
  at::Tensor scale;       ///< [N, G]
  at::Tensor zero_point;  ///< [N, G] or undefined
  std::int64_t columns_per_group = 0;
};

struct GptqResult {
  at::Tensor codes;  ///< int8 [N, K]: signed codes, or the bytes of fp8 values
  double loss = 0;   ///< sum over rows of (w - q) H (w - q)ᵀ, damping included
};

/// Quantizes weight [N, K] column by column with error feedback; `block_size` columns at a time (it does not change the
/// result beyond rounding).
GptqResult gptq(const at::Tensor& weight, const HessianFactor& factor, const ColumnScales& scales,
                const Codebook& codebook, std::int64_t block_size = 128);

/// The textbook GPTQ through the inverse's Cholesky factor, in double precision, one column at a time: the tests'
/// reference. `gram` as above.
GptqResult gptq_reference(const at::Tensor& weight, const at::Tensor& gram, const FactorizeOptions& options,
                          const ColumnScales& scales, const Codebook& codebook);

}  // namespace layerpress::kernels
