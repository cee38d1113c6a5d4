#include "layerpress/kernels/solver/error_propagation.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "layerpress/kernels/finite.h"
#include "layerpress/kernels/products/gram.h"
#include "layerpress/kernels/solver/cholesky.h"

namespace layerpress::kernels {
namespace {

// Rows that are moved at once: enough for fast products, few enough that padding a small weight is cheap.
constexpr std::int64_t kBlockRows = 288;

/// With few rows, W C is computed first and then divided; with many rows, C (XᵀX + ...)⁻¹ is computed once for all.
bool has_few_rows(std::int64_t group_rows, std::int64_t columns) { return group_rows < columns; }

/// Adds damping to the diagonal. The mean includes untouched columns.
void damp(const at::Tensor& matrix, double damping) {
  at::Tensor diagonal = matrix.diagonal();
  const at::Tensor added = diagonal.mean() * damping;
  diagonal.masked_fill_(diagonal.eq(0), 1);  // columns that no token touched
  diagonal.add_(added);
}

/// The lower Cholesky factor of the damped matrix, column-major. Returns nothing if a pivot is as small as the rounding
/// error of its diagonal element, because the solution would then be noise.
at::Tensor factorized(const at::Tensor& gram, double damping) {
  // The CPU reads only the upper triangle; column-major, it is the lower one.
  at::Tensor matrix = gram.is_cpu() ? gram.clone() : symmetric_from_upper(gram);
  damp(matrix, damping);
  const at::Tensor diagonal = matrix.diagonal().clone();
  if (!factorize_upper(matrix)) return {};
  at::Tensor lower = matrix.t();
  const double rounding = 4 * std::numeric_limits<float>::epsilon() * std::sqrt(static_cast<double>(gram.size(0)));
  const bool clear = lower.diagonal().square().gt(diagonal * rounding).all().item<bool>();  // false for NaN, too
  return clear ? lower : at::Tensor();
}

/// Replaces the rows of a contiguous B by those of B A⁻¹ for the symmetric A = L Lᵀ.
void divide(at::Tensor& rows, const at::Tensor& lower) {
  at::linalg_solve_triangular_out(rows, lower.t(), rows, /*upper=*/true, /*left=*/false);
  at::linalg_solve_triangular_out(rows, lower, rows, /*upper=*/false, /*left=*/false);
}

}  // namespace

std::optional<WeightMover> WeightMover::make(const at::Tensor& gram, const at::Tensor& cross, std::int64_t group_rows,
                                             const ErrorPropagation& options) {
  if (!all_finite(cross)) return std::nullopt;
  WeightMover mover;
  mover.strength_ = options.strength;
  mover.lower_ = factorized(gram.contiguous(), options.damping);
  if (!mover.lower_.defined()) return std::nullopt;
  mover.right_ = cross.contiguous();
  if (has_few_rows(group_rows, gram.size(0))) return mover;
  mover.right_ = cross.clone(at::MemoryFormat::Contiguous);
  divide(mover.right_, mover.lower_);
  mover.lower_.reset();
  if (!all_finite(mover.right_)) return std::nullopt;
  return mover;
}

std::optional<WeightMover> WeightMover::make_for_outputs(const at::Tensor& gram, const at::Tensor& output_cross,
                                                         double damping) {
  if (!all_finite(output_cross)) return std::nullopt;
  WeightMover mover;
  mover.strength_ = 1;
  mover.for_outputs_ = true;
  mover.lower_ = factorized(gram.contiguous(), damping);
  if (!mover.lower_.defined()) return std::nullopt;
  mover.right_ = output_cross.contiguous();
  return mover;
}

at::Tensor WeightMover::moved(const at::Tensor& weight, std::int64_t first_row) const {
  const std::int64_t rows = weight.size(0), columns = weight.size(1);
  at::Tensor result = at::empty({rows, columns}, right_.options());
  const at::Tensor block = at::zeros({kBlockRows, columns}, right_.options());
  at::Tensor change = at::zeros_like(block);
  for (std::int64_t first = 0; first < rows; first += kBlockRows) {
    const std::int64_t count = std::min(kBlockRows, rows - first);
    at::Tensor wide = block.narrow(0, 0, count), target = result.narrow(0, first, count);
    wide.copy_(weight.narrow(0, first, count));
    if (for_outputs_)
      change.narrow(0, 0, count).copy_(right_.narrow(0, first_row + first, count));
    else
      at::mm_out(change, block, right_);
    if (lower_.defined()) divide(change, lower_);
    at::add_out(target, wide, change.narrow(0, 0, count), strength_);
    if (!all_finite(target)) target.copy_(at::where(target.isfinite().all(1, /*keepdim=*/true), target, wide));
  }
  return result;
}

double WeightMover::flops(std::int64_t rows) const {
  const auto columns = static_cast<double>(right_.size(1));
  const double product = 2 * static_cast<double>(rows) * columns * columns;
  return lower_.defined() && !for_outputs_ ? 2 * product : product;
}

double mover_flops(std::int64_t group_rows, std::int64_t columns) {
  const double cube = static_cast<double>(columns) * static_cast<double>(columns) * static_cast<double>(columns);
  return cube / 3 + (has_few_rows(group_rows, columns) ? 0 : 2 * cube);
}

double moving_flops(std::int64_t rows, std::int64_t group_rows, std::int64_t columns) {
  const double product = 2 * static_cast<double>(rows) * static_cast<double>(columns) * static_cast<double>(columns);
  return has_few_rows(group_rows, columns) ? 2 * product : product;
}

std::uint64_t mover_bytes(std::int64_t columns) {
  return sizeof(float) * static_cast<std::uint64_t>(columns) * static_cast<std::uint64_t>(columns);
}

std::uint64_t mover_workspace(std::int64_t group_rows, std::int64_t columns) {
  const std::uint64_t matrix = mover_bytes(columns);
  return matrix + std::max(factorize_upper_workspace(columns), has_few_rows(group_rows, columns) ? 0 : matrix);
}

std::uint64_t moving_workspace(std::int64_t columns) {
  return 2 * sizeof(float) * static_cast<std::uint64_t>(kBlockRows * columns);
}

}  // namespace layerpress::kernels
