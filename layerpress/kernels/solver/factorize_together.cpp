#include "layerpress/kernels/solver/factorize_together.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace layerpress::kernels {
namespace {

constexpr std::int64_t kRowsAtOnce = 512;   // rows reordered at once
constexpr std::int64_t kColumnBlock = 128;  // columns factorized at once

/// Fills `matrix` with the symmetric matrix whose upper triangle is `gram`, rows and columns in `order`.
void reorder(const at::Tensor& gram, const at::Tensor& order, const at::Tensor& matrix) {
  const std::int64_t size = gram.size(0);
  const at::Tensor columns = at::arange(size, order.options());
  for (std::int64_t first = 0; first < size; first += kRowsAtOnce) {
    const std::int64_t count = std::min(kRowsAtOnce, size - first);
    const at::Tensor own = order.narrow(0, first, count);
    const at::Tensor rows =
        at::where(own.unsqueeze(1).le(columns), gram.index_select(0, own), gram.index_select(1, own).t());
    matrix.narrow(0, first, count).copy_(rows.index_select(1, order));
  }
}

/// Computes lower Cholesky factors in place; elements above the diagonal are unchanged. For each matrix, returns 0 or
/// that it has no factor.
at::Tensor factorize_by_blocks(const at::Tensor& matrices) {
  const std::int64_t size = matrices.size(1);
  at::Tensor info = at::zeros({matrices.size(0)}, matrices.options().dtype(at::kInt));
  for (std::int64_t first = 0; first < size; first += kColumnBlock) {
    const std::int64_t count = std::min(kColumnBlock, size - first);
    const at::Tensor panel = matrices.slice(1, first).narrow(2, first, count);
    if (first > 0) {
      const at::Tensor left = matrices.slice(1, first).narrow(2, 0, first);
      panel.sub_(at::bmm(left, left.narrow(1, 0, count).transpose(1, 2)));
    }
    const auto [lower, status] = at::linalg_cholesky_ex(panel.narrow(1, 0, count));
    info = at::maximum(info, status);
    panel.narrow(1, 0, count).copy_(lower);
    if (first + count == size) break;
    const at::Tensor below = panel.slice(1, count);
    below.copy_(at::linalg_solve_triangular(lower.transpose(1, 2), below.contiguous(), /*upper=*/true, /*left=*/false));
  }
  return info;
}

/// The same with the device's own factorization.
at::Tensor factorize_one(const at::Tensor& matrix) {
  at::Tensor lower = matrix.t(), info = at::empty({}, matrix.options().dtype(at::kInt));
  at::linalg_cholesky_ex_out(lower, info, lower);  // in LAPACK's layout, in place
  matrix.copy_(lower.clone());
  return info.view({1});
}

}  // namespace

HessianFactors factorize_together(const std::vector<at::Tensor>& grams, const FactorizeOptions& options) {
  const auto count = static_cast<std::int64_t>(grams.size()), size = grams.front().size(0);
  const auto number = options.double_precision ? at::kDouble : at::kFloat;
  const at::Tensor matrices = at::empty({count, size, size}, grams.front().options().dtype(number));
  std::vector<at::Tensor> orders;
  for (std::int64_t m = 0; m < count; ++m) {
    orders.push_back(column_order(grams[m].diagonal(), options));
    reorder(grams[m], orders.back().flip(0), matrices[m]);
  }
  prepare_diagonal(matrices.diagonal(0, 1, 2), options.dampening);
  const at::Tensor info = count == 1 ? factorize_one(matrices[0]) : factorize_by_blocks(matrices);
  for (std::int64_t m = 0; m < count; ++m) matrices[m].copy_(matrices[m].flip({0, 1}));
  const at::Tensor diagonals = matrices.diagonal(0, 1, 2).clone();
  HessianFactors result;
  result.factors.order = at::stack(orders);
  result.factors.pivots = diagonals.square().to(at::kFloat);
  matrices.div_(diagonals.unsqueeze(1)).triu_(1);
  result.factors.feedback = matrices.to(at::kFloat);
  const at::Tensor definite = info.eq(0).logical_and(diagonals.isfinite().all(1)).cpu();
  for (std::int64_t m = 0; m < count; ++m) result.definite.push_back(definite[m].item<bool>());
  return result;
}

std::uint64_t factorize_together_workspace(std::int64_t matrices, std::int64_t columns) {
  // Besides the factors: a matrix in another order or layout, and rows being copied there; or panels.
  const std::int64_t rows = 5 * std::min(kRowsAtOnce, columns), panels = 3 * matrices * std::min(kColumnBlock, columns);
  return static_cast<std::uint64_t>(matrices) * factor_bytes(columns) +
         sizeof(float) * static_cast<std::uint64_t>((columns + std::max(rows, panels)) * columns);
}

}  // namespace layerpress::kernels
