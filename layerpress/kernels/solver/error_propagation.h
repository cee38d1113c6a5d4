#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace layerpress::kernels {

/// How far weights are moved towards the original model's outputs before they are quantized.
struct ErrorPropagation {
  double strength = 0.8;
  double damping = 0.3;  ///< in multiples of the mean of the Gram matrix's diagonal
  /// Share of the residual stream's own error that linears writing into the stream compensate for.
  double residual = 0.4;
};

/// Moves weights that read one input: W + strength W C (XᵀX + damping mean(diagonal) I)⁻¹ with C = (X̃ - X)ᵀ X, where X
/// are the inputs in the compressed model and X̃ those in the original model. At strength 1 and without damping, the
/// moved weight applied to X is the least-squares approximation of W applied to X̃ (QEP, arXiv 2504.09629). Columns
/// that no token touched get a unit diagonal and do not move.
///
/// For a linear that writes into the residual stream, it is known what the original model writes (kernels/layers/output_cross.h), and
/// the change includes part of the stream's own difference: with E = strength X̃Wᵀ + residual (r̃ - r) and the damped diagonal
/// D = damping mean(diagonal) I, W + (EᵀX - strength W XᵀX) (XᵀX + D)⁻¹ = (1 - strength) W + (EᵀX + strength W D) (XᵀX + D)⁻¹.
///
/// On a CPU, the bits of a row do not depend on the rows that are moved with it.
class WeightMover {
 public:
  /// `gram` is fp32 [K, K], upper triangle; `cross` is fp32 [K, K], and the mover may keep it. `group_rows`, the rows
  /// of all weights that read the input, determines the order of the products and thereby the bits. Returns nothing if
  /// `cross` is not finite or if the matrix is not positive definite within fp32 precision.
  static std::optional<WeightMover> make(const at::Tensor& gram, const at::Tensor& cross, std::int64_t group_rows,
                                         const ErrorPropagation& options);

  /// The same for the only linear that reads the input, with EᵀX, fp32 [rows, K], which the mover may keep.
  static std::optional<WeightMover> make_for_outputs(const at::Tensor& gram, const at::Tensor& output_cross,
                                                     const ErrorPropagation& options);

  /// The moved weight [N, K], in fp32, for a weight of any float dtype. A row whose result is not finite is returned
  /// unmoved. `first_row` is the position of the rows in the whole weight.
  at::Tensor moved(const at::Tensor& weight, std::int64_t first_row = 0) const;

  /// Operations for moving `rows` rows.
  double flops(std::int64_t rows) const;

 private:
  WeightMover() = default;
  /// What is added to some rows, transposed: [K, rows].
  at::Tensor divided_rows(const at::Tensor& weight, std::int64_t first_row) const;
  double strength_ = 0;
  at::Tensor factor_;  // as of solve_by_factor(), [K, K]; undefined if `right_` is already divided
  at::Tensor damped_;  // what D added to each column; only for outputs
  /// The right factor of the weights: C; if there are many rows, the transpose of the whole C (XᵀX + ...)⁻¹; or EᵀX.
  at::Tensor right_;
};

/// Operations for making a mover, and for moving `rows` rows of a group; at most as many for a mover for outputs.
double mover_flops(std::int64_t group_rows, std::int64_t columns);
double moving_flops(std::int64_t rows, std::int64_t group_rows, std::int64_t columns);

/// Bytes on the CPU: the peak while a mover is made, what the mover then holds, and what moved() needs besides its
/// result; at most as many for a mover for outputs.
std::uint64_t mover_workspace(std::int64_t group_rows, std::int64_t columns);
std::uint64_t mover_bytes(std::int64_t columns);
std::uint64_t moving_workspace(std::int64_t columns);

}  // namespace layerpress::kernels
