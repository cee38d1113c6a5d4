#pragma once

#include <vector>

#include "layerpress/kernels/factorize.h"

namespace layerpress::kernels {

/// Factors of some Gram matrices of one size: in `factors` every tensor has a leading dimension, which matrix.
struct HessianFactors {
  HessianFactor factors;
  std::vector<bool> definite;  ///< what is not has no meaning in `factors`
};

/// factorize() for devices, with ATen operations: small matrices all at once, in blocks of columns, a single one with the
/// device's own Cholesky factorization. Waits for the device once.
HessianFactors factorize_together(const std::vector<at::Tensor>& grams, const FactorizeOptions& options);

/// Bytes that factorize_together allocates at most in single precision for so many matrices of K columns, its result included.
std::uint64_t factorize_together_workspace(std::int64_t matrices, std::int64_t columns);

}  // namespace layerpress::kernels
