#include "layerpress/kernels/solver/cholesky.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <vector>

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

/// Rows become leftᵀ times them.
void multiply_rows(const at::Tensor& rows, const at::Tensor& left) {
  at::Tensor products = at::zeros_like(rows, at::MemoryFormat::Contiguous);
  accumulate_tiles(products, left, rows);
  rows.copy_(products);
}

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
    multiply_rows(later, inverse);
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
  float* const values = matrix.data_ptr<float>();
  at::parallel_for(0, size, kBlock, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) std::fill_n(values + i * size, i, 0.0f);
  });
  return true;
}

/// Substitutions with a factor that has both triangles, in rows of X. A row that is still to be solved is negated, so that products are
/// added.
class Substitution {
 public:
  Substitution(at::Tensor& x, const at::Tensor& factor) : x_(x), factor_(factor), size_(factor.size(0)) {
    for (std::int64_t first = 0; first < size_; first += kBlock) {
      const std::int64_t count = std::min(kBlock, size_ - first);
      inverses_.push_back(at::zeros({count, count}, factor.options()));
      Square(factor.data_ptr<float>() + first * (size_ + 1), size_, count)
          .invert_negated(inverses_.back().data_ptr<float>());
    }
  }

  /// X becomes U⁻ᵀ X.
  void forward() {
    x_.neg_();
    for (std::int64_t panel = 0; panel < size_; panel += kPanel) {
      const std::int64_t end = std::min(panel + kPanel, size_);
      add_products(panel, end, 0, panel);
      for (std::int64_t first = panel; first < end; first += kBlock) {
        const std::int64_t last = std::min(first + kBlock, end);
        add_products(first, last, panel, first);
        divide(first, last, inverses_[block(first)]);
      }
    }
  }

  /// X becomes U⁻¹ X.
  void backward() {
    x_.neg_();
    for (std::int64_t panel = (size_ - 1) / kPanel * kPanel; panel >= 0; panel -= kPanel) {
      const std::int64_t end = std::min(panel + kPanel, size_);
      add_products(panel, end, end, size_);
      for (std::int64_t first = panel + (end - panel - 1) / kBlock * kBlock; first >= panel; first -= kBlock) {
        const std::int64_t last = std::min(first + kBlock, end);
        add_products(first, last, last, end);
        divide(first, last, inverses_[block(first)].t().contiguous());
      }
    }
  }

 private:
  static std::size_t block(std::int64_t row) { return static_cast<std::size_t>(row / kBlock); }

  /// Adds to rows [first, last) of X the products of the factor's columns with rows [begin, end).
  void add_products(std::int64_t first, std::int64_t last, std::int64_t begin, std::int64_t end) {
    if (begin == end) return;
    at::Tensor target = x_.slice(0, first, last);
    accumulate_tiles(target, factor_.slice(0, begin, end).slice(1, first, last), x_.slice(0, begin, end));
  }

  void divide(std::int64_t first, std::int64_t last, const at::Tensor& transposed_inverse) {
    multiply_rows(x_.slice(0, first, last), transposed_inverse);
  }

  at::Tensor& x_;
  const at::Tensor& factor_;
  std::int64_t size_;
  std::vector<at::Tensor> inverses_;  // of the squares on the diagonal, negated
};

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

void solve_by_factor(at::Tensor& x, const at::Tensor& factor) {
  if (x.is_cpu()) {
    Substitution substitution(x, factor);
    substitution.forward();
    return substitution.backward();
  }
  x.copy_(at::linalg_solve_triangular(factor.t(), x, /*upper=*/false));
  x.copy_(at::linalg_solve_triangular(factor, x, /*upper=*/true));
}

std::uint64_t solve_by_factor_workspace(std::int64_t columns, std::int64_t right_sides) {
  return packed_chunk_bytes(kPanel, at::kFloat) + packed_chunk_bytes(right_sides, at::kFloat) +
         sizeof(float) * static_cast<std::uint64_t>(kBlock * (columns + right_sides));
}

std::uint64_t factorize_upper_workspace(std::int64_t columns) {
  return sizeof(float) * static_cast<std::uint64_t>((columns + kBlock) * (kPanel + kBlock) + 8 * kBlock * kBlock);
}

}  // namespace layerpress::kernels
