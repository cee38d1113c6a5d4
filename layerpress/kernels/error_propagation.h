#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace layerpress::kernels {

/// How far weights are moved towards the original model's outputs before they are quantized.
struct ErrorPropagation {
  double strength = 0.8;
  double damping = 0.3;  ///< times the mean of the Gram matrix's diagonal
  /// Of the residual stream's own difference, made good by the linears that write into it.
  double residual = 0.4;
};

/// Moves weights that read one input: W + strength W C (XᵀX + damping mean(diagonal) I)⁻¹ with C = (X̃ - X)ᵀ X, where X
/// are the inputs in the compressed model and X̃ those in the original one. At strength 1 and without damping the result
/// makes of X what is nearest to what W makes of X̃ (QEP, arXiv 2504.09629). Columns that no token touched get a unit
/// diagonal and do not move.
///
/// Of a linear that writes into the residual stream the outputs' difference is known (kernels/output_cross.h), which has
/// part of the stream's own in it: W + (EᵀX) (XᵀX + damping mean(diagonal) I)⁻¹.
///
/// Rows are moved in blocks of one size, padded, so that a row gets the same bits whatever rows it is moved with.
class WeightMover {
 public:
  /// `gram` fp32 [K, K], upper triangle; `cross` fp32 [K, K], which the mover may keep. `group_rows`, the rows of all
  /// weights that read the input, decides in which order the products are formed, and with it the bits. Nothing when
  /// `cross` is not finite or the matrix not positive definite as far as fp32 can tell.
  static std::optional<WeightMover> make(const at::Tensor& gram, const at::Tensor& cross, std::int64_t group_rows,
                                         const ErrorPropagation& options);

  /// The same for the one linear that reads the input, by EᵀX, fp32 [rows, K], which the mover may keep.
  static std::optional<WeightMover> make_for_outputs(const at::Tensor& gram, const at::Tensor& output_cross,
                                                     double damping);

  /// The weight [N, K] of any float dtype, moved, in fp32. A row whose result is not finite stays as it is. `first_row`:
  /// where the rows begin in the whole weight.
  at::Tensor moved(const at::Tensor& weight, std::int64_t first_row = 0) const;

  /// Operations that moving `rows` takes.
  double flops(std::int64_t rows) const;

 private:
  WeightMover() = default;
  double strength_ = 0;
  bool for_outputs_ = false;
  at::Tensor lower_;  // Cholesky factor [K, K], column-major; undefined where `right_` is divided already
  at::Tensor
      right_;  // what weights are multiplied with: C, or the whole C (XᵀX + ...)⁻¹ where there are many rows; or EᵀX
};

/// Operations that it takes to make a mover, and to move `rows` of a group's; a mover for outputs takes no more.
double mover_flops(std::int64_t group_rows, std::int64_t columns);
double moving_flops(std::int64_t rows, std::int64_t group_rows, std::int64_t columns);

/// Bytes on the CPU: most that making a mover takes, what the mover then holds, and what moved() takes beside its result; a
/// mover for outputs takes no more.
std::uint64_t mover_workspace(std::int64_t group_rows, std::int64_t columns);
std::uint64_t mover_bytes(std::int64_t columns);
std::uint64_t moving_workspace(std::int64_t columns);

/// The moved weight from the definition in double precision: the tests' reference.
at::Tensor moved_reference(const at::Tensor& weight, const at::Tensor& gram, const at::Tensor& cross,
                           const ErrorPropagation& options);
at::Tensor moved_reference_for_outputs(const at::Tensor& weight, const at::Tensor& gram, const at::Tensor& output_cross,
                                       double damping);

}  // namespace layerpress::kernels
