#include "layerpress/kernels/solver/cholesky.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "layerpress/kernels/cpu/table.h"
#include "layerpress/kernels/products/gram_tiles.h"

namespace layerpress::kernels {
namespace {

// Rows of the factor that LAPACK computes at once, and rows whose products are subtracted from all later ones at once.
constexpr std::int64_t kBlock = cpu::kGramPanel, kPanel = 4 * kBlock;
// LAPACK is faster for smaller and for larger matrices.
constexpr std::int64_t kFewestColumns = 768, kMostColumns = 12288;

bool goes_by_panels(std::int64_t columns) { return columns >= kFewestColumns && columns <= kMostColumns; }

/// The matrix while it is factorized: rows of the factor, and behind them what is left of A, negated, so that products are added.
class Remainder {
 public:
  explicit Remainder(at::Tensor& matrix) : matrix_(matrix) { matrix_.neg_(); }

  /// Makes rows [first, last) those of the factor.
  bool finish_rows(std::int64_t first, std::int64_t last) {
    const at::Tensor square = part(first, last, first).narrow(1, 0, last - first);
    const auto [factor, info] = at::linalg_cholesky_ex(square.neg(), /*upper=*/true);
    if (info.item<int>() != 0) return false;
    square.copy_(factor);
    if (last == matrix_.size(0)) return true;
    const at::Tensor later = part(first, last, last);
    const at::Tensor inverse = at::linalg_solve_triangular(factor, -at::eye(last - first), /*upper=*/true);
    at::Tensor rows = at::zeros_like(later, at::MemoryFormat::Contiguous);
    accumulate_tiles(rows, inverse.contiguous(), later);
    later.copy_(rows);
    return true;
  }

  /// Subtracts the products of the factor's rows [first, last) from rows [begin, end) of A.
  void subtract_products(std::int64_t first, std::int64_t last, std::int64_t begin, std::int64_t end) {
    at::Tensor target = part(begin, matrix_.size(0), begin);
    accumulate_triangle(target, part(first, last, begin), {0, end - begin});
  }

 private:
  /// Rows [first, last) from a column on.
  at::Tensor part(std::int64_t first, std::int64_t last, std::int64_t column) const {
    return matrix_.slice(0, first, last).slice(1, column);
  }

  at::Tensor& matrix_;
};

bool factorize_by_panels(at::Tensor& matrix) {
  const std::int64_t size = matrix.size(0);
  Remainder remainder(matrix);
  for (std::int64_t panel = 0; panel < size; panel += kPanel) {
    const std::int64_t end = std::min(panel + kPanel, size);
    for (std::int64_t first = panel; first < end; first += kBlock) {
      const std::int64_t last = std::min(first + kBlock, end);
      if (!remainder.finish_rows(first, last)) return false;
      if (last < end) remainder.subtract_products(first, last, last, end);
    }
    if (end < size) remainder.subtract_products(panel, end, end, size);
  }
  matrix.triu_();
  return true;
}

/// Or with what ATen has for a device.
bool factorize_with_lapack(at::Tensor& matrix) {
  // Column-major, the upper triangle is the lower one, which is LAPACK's layout, so nothing is copied.
  at::Tensor lower = matrix.t(), info = at::empty({}, matrix.options().dtype(at::kInt));
  at::linalg_cholesky_ex_out(lower, info, lower);
  return info.item<int>() == 0;
}

}  // namespace

bool factorize_upper(at::Tensor& matrix) {
  const bool by_panels = matrix.is_cpu() && matrix.scalar_type() == at::kFloat && goes_by_panels(matrix.size(0));
  if (!(by_panels ? factorize_by_panels(matrix) : factorize_with_lapack(matrix))) return false;
  return matrix.diagonal().isfinite().all().item<bool>();
}

std::uint64_t factorize_upper_workspace(std::int64_t columns) {
  if (!goes_by_panels(columns)) return 0;
  return sizeof(float) * static_cast<std::uint64_t>((columns + kBlock) * (kPanel + kBlock) + 8 * kBlock * kBlock);
}

}  // namespace layerpress::kernels
