#include "layerpress/kernels/error_propagation.h"

#include <ATen/ATen.h>

#include "layerpress/kernels/finite.h"
#include "layerpress/kernels/gram.h"

namespace layerpress::kernels {
namespace {

/// With few rows W C comes first and the solution is of W's size; with many, C (XᵀX + ...)⁻¹ is formed once for all.
bool has_few_rows(std::int64_t group_rows, std::int64_t columns) { return group_rows < columns; }

at::Tensor damped(const at::Tensor& gram, double damping) {
  at::Tensor matrix = symmetric_from_upper(gram);
  at::Tensor diagonal = matrix.diagonal();
  diagonal.masked_fill_(diagonal.eq(0), 1);  // columns that no token touched
  diagonal.add_(diagonal.mean() * damping);
  return matrix;
}

/// B A⁻¹ for the symmetric A with this Cholesky factor: (A⁻¹ Bᵀ)ᵀ.
at::Tensor divided(const at::Tensor& matrix, const at::Tensor& lower) {
  return at::cholesky_solve(matrix.t(), lower).t().contiguous();
}

}  // namespace

std::optional<std::vector<at::Tensor>> propagate_errors(const std::vector<at::Tensor>& weights, std::int64_t group_rows,
                                                        const at::Tensor& gram, const at::Tensor& cross,
                                                        const ErrorPropagation& options) {
  // Symmetric, so that it may as well be column-major, LAPACK's own layout, in which it is factorized in place.
  at::Tensor lower = damped(gram, options.damping).t(), info = at::empty({}, gram.options().dtype(at::kInt));
  at::linalg_cholesky_ex_out(lower, info, lower);
  if (info.item<int>() != 0) return std::nullopt;
  const bool few = has_few_rows(group_rows, gram.size(0));
  const at::Tensor matrix = few ? at::Tensor() : divided(cross, lower);
  if (!few) lower.reset();
  std::vector<at::Tensor> moved;
  for (const at::Tensor& weight : weights) {
    const at::Tensor wide = weight.to(at::kFloat);
    moved.push_back(few ? at::add(wide, divided(wide.mm(cross), lower), options.strength)
                        : at::addmm(wide, wide, matrix, 1, options.strength));
    if (!all_finite(moved.back())) return std::nullopt;
  }
  return moved;
}

double propagation_flops(std::int64_t rows, std::int64_t group_rows, std::int64_t columns) {
  const auto size = static_cast<double>(columns), own = static_cast<double>(rows);
  const double factor = size * size * size / 3;
  return factor + (has_few_rows(group_rows, columns) ? 4 * own * size * size : 2 * size * size * size + 2 * own * size * size);
}

std::uint64_t propagation_workspace(std::int64_t most_rows, std::int64_t group_rows, std::int64_t columns) {
  const auto square = static_cast<std::uint64_t>(columns) * static_cast<std::uint64_t>(columns);
  const auto weight = static_cast<std::uint64_t>(most_rows) * static_cast<std::uint64_t>(columns);
  // The factor; a product, its column-major copy and its row-major solution; or those of the matrix, then a wide weight.
  const std::uint64_t elements = has_few_rows(group_rows, columns) ? square + 4 * weight : 3 * square + weight;
  return elements * sizeof(float);
}

at::Tensor propagated_reference(const at::Tensor& weight, const at::Tensor& gram, const at::Tensor& cross,
                                const ErrorPropagation& options) {
  at::Tensor matrix = symmetric_from_upper(gram).to(at::kDouble);
  at::Tensor diagonal = matrix.diagonal();
  diagonal.masked_fill_(diagonal.eq(0), 1);
  diagonal.add_(diagonal.mean() * options.damping);
  const at::Tensor wide = weight.to(at::kDouble);
  return wide + options.strength * wide.mm(cross.to(at::kDouble)).mm(at::inverse(matrix));
}

}  // namespace layerpress::kernels
