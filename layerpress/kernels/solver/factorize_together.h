#pragma once

#include <vector>

#include "layerpress/kernels/solver/factorize.h"

namespace layerpress::kernels {

/// Factors of several Gram matrices of one size: every tensor in `factors` has a leading dimension, the index of the
/// matrix.
struct HessianFactors {
  HessianFactor factors;
  std::vector<bool> definite;  ///< whether each factor is valid
};

/// factorize() for devices, with ATen operations: small matrices together, in blocks of columns; a single one with the
/// device's own Cholesky factorization. Synchronizes with the device once.
HessianFactors factorize_together(const std::vector<at::Tensor>& grams, const FactorizeOptions& options);

/// Bytes that factorize_together allocates at most in single precision for so many matrices of K columns, including its
/// result.
std::uint64_t factorize_together_workspace(std::int64_t matrices, std::int64_t columns);

}  // namespace layerpress::kernels
