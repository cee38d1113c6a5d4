#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "layerpress/kernels/solver/factorize.h"

namespace layerpress::kernels {

/// Which share of a weight becomes zero.
struct SparsePattern {
  double sparsity = 0;      ///< share of zeros, below 1; without groups
  std::int64_t pruned = 0;  ///< zeros among each `group` consecutive columns of a row
  std::int64_t group = 0;   ///< 0: no groups
};

/// The places of the least scores [N, K], as bool: in each group of a row, or ⌊K sparsity⌋ of each row. Of equal scores the first are
/// taken. REQUIRES: groups divide K; no score is negative.
at::Tensor least_scores(const at::Tensor& scores, const SparsePattern& pattern);

struct SparsifyOptions {
  SparsePattern pattern;
  std::int64_t block_size = 128;  ///< columns among which a weight's least scores are looked for; a multiple of groups
  bool keeps_zeros = false;       ///< weights that are 0 stay 0 and count among the zeros of the pattern
};

struct SparseWeight {
  at::Tensor weight;  ///< [N, K] in the given dtype
  double loss = 0;    ///< sum over rows of (w - weight) H (w - weight)ᵀ, damping included
};

/// SparseGPT (arXiv 2301.00774): sets weights [N, K] of any float dtype to zero, block by block of columns, and moves later columns
/// so that the outputs change least. The score of an element is its loss, w² / U²ⱼⱼ, where U is the upper Cholesky factor of H⁻¹.
/// Without groups, the ⌊N block sparsity⌋ + 1 least scores of a block are pruned, and those equal to the last one; with groups, the
/// least of each group of a row when its first column is reached. `factor` has its columns in their own order. `untouched`, bool
/// [K]: columns that no token touched, which become zero.
SparseWeight sparsify(const at::Tensor& weight, const HessianFactor& factor, const at::Tensor& untouched,
                      const SparsifyOptions& options);

/// Bytes that sparsify allocates at most besides its result.
std::uint64_t sparsify_workspace(std::int64_t rows, std::int64_t columns, const SparsifyOptions& options);

}  // namespace layerpress::kernels
