#include "layerpress/kernels/solver/cholesky.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "layerpress/kernels/cpu/table.h"
#include "layerpress/kernels/products/gram_tiles.h"

namespace layerpress::kernels {
namespace {

// Rows of the factor that are computed at once, and rows whose products are subtracted from all later ones at once.
constexpr std::int64_t kBlock = cpu::kGramPanel, kPanel = 4 * kBlock;

/// A square on the diagonal, negated, whose upper triangle becomes that of the factor.
class Square {
 public:
  Square(float* values, std::int64_t stride, std::int64_t size) : values_(values), stride_(stride), size_(size) {}

  /// False if a pivot is not positive.
  bool factorize() {
    for (std::int64_t k = 0; k < size_; ++k) {
      float* const own = row(k);
      const float pivot = std::sqrt(-own[k]);
      if (!(pivot > 0)) return false;
      const float scale = -1 / pivot;
      own[k] = pivot;
      for (std::int64_t j = k + 1; j < size_; ++j) own[j] *= scale;
      for (std::int64_t i = k + 1; i < size_; ++i) add_row(own[i], own, i, size_, row(i));
    }
    return true;
  }

  /// Writes the negated inverse of the factor to the upper triangle of `inverse` [size, size], which is zero.
  void invert_negated(float* inverse) const {
    for (std::int64_t i = size_ - 1; i >= 0; --i) {
      float* const own = inverse + i * size_;
      const float scale = -1 / row(i)[i];
      for (std::int64_t k = i + 1; k < size_; ++k) add_row(row(i)[k] * scale, inverse + k * size_, k, size_, own);
      own[i] = scale;
    }
  }

 private:
  float* row(std::int64_t i) const { return values_ + i * stride_; }

  /// target[begin, end) += factor * source.
  static void add_row(float factor, const float* source, std::int64_t begin, std::int64_t end, float* target) {
    for (std::int64_t j = begin; j < end; ++j) target[j] += factor * source[j];
  }

  float* values_;
  std::int64_t stride_, size_;
};

/// The matrix while it is factorized: rows of the factor, and behind them what is left of A, negated, so that products are added.
class Remainder {
 public:
  explicit Remainder(at::Tensor& matrix) : matrix_(matrix) { matrix_.neg_(); }

  /// Makes rows [first, last) those of the factor.
  bool finish_rows(std::int64_t first, std::int64_t last) {
    const std::int64_t count = last - first;
    Square square(matrix_.data_ptr<float>() + first * matrix_.size(1) + first, matrix_.size(1), count);
    if (!square.factorize()) return false;
    if (last == matrix_.size(0)) return true;
    const at::Tensor later = part(first, last, last);
    const at::Tensor inverse = at::zeros({count, count}, matrix_.options());
    square.invert_negated(inverse.data_ptr<float>());
    at::Tensor rows = at::zeros_like(later, at::MemoryFormat::Contiguous);
    accumulate_tiles(rows, inverse, later);
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

/// For other dtypes and devices.
bool factorize_with_lapack(at::Tensor& matrix) {
  // Column-major, the upper triangle is the lower one, which is LAPACK's layout, so nothing is copied.
  at::Tensor lower = matrix.t(), info = at::empty({}, matrix.options().dtype(at::kInt));
  at::linalg_cholesky_ex_out(lower, info, lower);
  return info.item<int>() == 0;
}

}  // namespace

bool factorize_upper(at::Tensor& matrix) {
  const bool by_panels = matrix.is_cpu() && matrix.scalar_type() == at::kFloat;
  if (!(by_panels ? factorize_by_panels(matrix) : factorize_with_lapack(matrix))) return false;
  return matrix.diagonal().isfinite().all().item<bool>();
}

std::uint64_t factorize_upper_workspace(std::int64_t columns) {
  return sizeof(float) * static_cast<std::uint64_t>((columns + kBlock) * (kPanel + kBlock) + 8 * kBlock * kBlock);
}

}  // namespace layerpress::kernels
