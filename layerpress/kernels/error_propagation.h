#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace layerpress::kernels {

/// How far weights are moved towards the original model's outputs before they are quantized.
struct ErrorPropagation {
  double strength = 0.5;
  double damping = 0.1;  ///< times the mean of the Gram matrix's diagonal
};

/// Moves weights that read one input: W + strength W C (XᵀX + damping mean(diagonal) I)⁻¹ with C = (X̃ - X)ᵀ X, where X are the
/// inputs in the compressed model and X̃ those in the original one. At strength 1 and without damping the result makes of X
/// what is nearest to what W makes of X̃ (QEP, arXiv 2504.09629). `weights` [N, K] of any float dtype, the results fp32;
/// `gram` fp32 [K, K], upper triangle; `cross` fp32 [K, K]. Nothing when the matrix is not positive definite or a result not
/// finite.
///
/// `group_rows`, the rows of all weights that read the input, decides in which order the products are formed, so that
/// parts of the rows get the bits that all of them together get.
std::optional<std::vector<at::Tensor>> propagate_errors(const std::vector<at::Tensor>& weights, std::int64_t group_rows,
                                                        const at::Tensor& gram, const at::Tensor& cross,
                                                        const ErrorPropagation& options);

/// Operations that it takes for `rows` of `group_rows` rows, and the bytes that it allocates beside its results.
double propagation_flops(std::int64_t rows, std::int64_t group_rows, std::int64_t columns);
std::uint64_t propagation_workspace(std::int64_t most_rows, std::int64_t group_rows, std::int64_t columns);

/// The same from the definition in double precision: the tests' reference.
at::Tensor propagated_reference(const at::Tensor& weight, const at::Tensor& gram, const at::Tensor& cross,
                                const ErrorPropagation& options);

}  // namespace layerpress::kernels
