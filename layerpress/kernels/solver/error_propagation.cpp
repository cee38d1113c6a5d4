#include "layerpress/kernels/solver/error_propagation.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "layerpress/kernels/finite.h"
#include "layerpress/kernels/products/gram.h"
#include "layerpress/kernels/products/gram_tiles.h"
#include "layerpress/kernels/products/product.h"
#include "layerpress/kernels/solver/cholesky.h"

namespace layerpress::kernels {
namespace {

// Rows that are moved at once: enough for fast products, few enough that they need little memory.
constexpr std::int64_t kBlockRows = 576;

/// With few rows, W C is computed first and then divided; with many rows, C (XᵀX + ...)⁻¹ is computed once for all.
bool has_few_rows(std::int64_t group_rows, std::int64_t columns) { return group_rows < columns; }

/// The diagonal with damping. The mean includes untouched columns.
at::Tensor damped(const at::Tensor& diagonal, double damping) {
  // Columns that no token touched get a unit diagonal.
  return diagonal.masked_fill(diagonal.eq(0), 1).add_(diagonal.mean() * damping);
}

/// The Cholesky factor of the damped matrix as solve_by_factor() wants it. Returns nothing if a pivot is as small as the rounding
/// error of its diagonal element, because the solution would then be noise.
at::Tensor factorized(const at::Tensor& gram, double damping) {
  at::Tensor matrix = gram.is_cpu() ? gram.clone() : symmetric_from_upper(gram);
  const at::Tensor diagonal = damped(matrix.diagonal(), damping);
  matrix.diagonal().copy_(diagonal);
  if (!factorize_upper(matrix)) return {};
  const double rounding = 4 * std::numeric_limits<float>::epsilon() * std::sqrt(static_cast<double>(gram.size(0)));
  const bool clear = matrix.diagonal().square().gt(diagonal * rounding).all().item<bool>();  // false for NaN, too
  if (!clear) return {};
  mirror_upper(matrix);
  return matrix;
}

/// rows matrixᵀ, in fp32.
at::Tensor times_transposed(const at::Tensor& rows, const at::Tensor& matrix) {
  if (!rows.is_cpu()) return at::linear(rows, matrix);
  at::Tensor product = at::empty({rows.size(0), matrix.size(0)}, rows.options());
  multiply_wide({rows, matrix, matrix, /*bias=*/nullptr, product, /*gated=*/false});
  return product;
}

}  // namespace

std::optional<WeightMover> WeightMover::make(const at::Tensor& gram, const at::Tensor& cross, std::int64_t group_rows,
                                             const ErrorPropagation& options) {
  if (!all_finite(cross)) return std::nullopt;
  WeightMover mover;
  mover.strength_ = options.strength;
  mover.factor_ = factorized(gram.contiguous(), options.damping);
  if (!mover.factor_.defined()) return std::nullopt;
  mover.right_ = cross.contiguous();
  if (has_few_rows(group_rows, gram.size(0))) return mover;
  at::Tensor divided = cross.t().clone(at::MemoryFormat::Contiguous);
  solve_by_factor(divided, mover.factor_);
  mover.factor_.reset();
  mover.right_ = divided;
  if (!all_finite(mover.right_)) return std::nullopt;
  return mover;
}

std::optional<WeightMover> WeightMover::make_for_outputs(const at::Tensor& gram, const at::Tensor& output_cross,
                                                         const ErrorPropagation& options) {
  if (!all_finite(output_cross)) return std::nullopt;
  WeightMover mover;
  mover.strength_ = options.strength;
  mover.factor_ = factorized(gram.contiguous(), options.damping);
  if (!mover.factor_.defined()) return std::nullopt;
  const at::Tensor diagonal = gram.diagonal();
  mover.damped_ = damped(diagonal, options.damping) - diagonal;
  mover.right_ = output_cross.contiguous();
  return mover;
}

at::Tensor WeightMover::moved(const at::Tensor& weight, std::int64_t first_row) const {
  const std::int64_t rows = weight.size(0), columns = weight.size(1);
  at::Tensor result = at::empty({rows, columns}, right_.options());
  for (std::int64_t first = 0; first < rows; first += kBlockRows) {
    const std::int64_t count = std::min(kBlockRows, rows - first);
    at::Tensor target = result.narrow(0, first, count);
    target.copy_(weight.narrow(0, first, count));
    const at::Tensor change =
        factor_.defined() ? divided_rows(target, first_row + first).t() : times_transposed(target, right_);
    const at::Tensor moved =
        damped_.defined() ? at::add(change, target, 1 - strength_) : at::add(target, change, strength_);
    target.copy_(all_finite(moved) ? moved : at::where(moved.isfinite().all(1, /*keepdim=*/true), moved, target));
  }
  return result;
}

at::Tensor WeightMover::divided_rows(const at::Tensor& weight, std::int64_t first_row) const {
  at::Tensor change = at::zeros({weight.size(1), weight.size(0)}, right_.options());
  if (damped_.defined())
    change.copy_(at::addcmul(right_.narrow(0, first_row, weight.size(0)), weight, damped_, strength_).t());
  else
    accumulate_product(change, right_, weight.t().contiguous());
  solve_by_factor(change, factor_);
  return change;
}

double WeightMover::flops(std::int64_t rows) const {
  const auto columns = static_cast<double>(right_.size(1));
  const double product = 2 * static_cast<double>(rows) * columns * columns;
  return factor_.defined() && !damped_.defined() ? 2 * product : product;
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
  const std::uint64_t division =
      has_few_rows(group_rows, columns) ? 0 : matrix + solve_by_factor_workspace(columns, columns);
  return matrix + std::max(factorize_upper_workspace(columns), division);
}

std::uint64_t moving_workspace(std::int64_t columns) {
  const std::uint64_t block = sizeof(float) * static_cast<std::uint64_t>(kBlockRows * columns);
  return 2 * block + std::max({solve_by_factor_workspace(columns, kBlockRows),
                               packed_chunk_bytes(columns, at::kFloat) + packed_chunk_bytes(kBlockRows, at::kFloat),
                               wide_workspace_bytes(kBlockRows, columns, at::get_num_threads())});
}

}  // namespace layerpress::kernels
