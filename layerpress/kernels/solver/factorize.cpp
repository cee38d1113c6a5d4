#include "layerpress/kernels/solver/factorize.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cstring>

#include "layerpress/kernels/solver/cholesky.h"
#include "layerpress/kernels/solver/factorize_together.h"

namespace layerpress::kernels {
namespace {

/// Reorders work items of decreasing size so that consecutive runs of equal length take about equal time: 0, n - 1, 1,
/// n - 2, ...
std::int64_t folded(std::int64_t index, std::int64_t count) {
  return index % 2 == 0 ? index / 2 : count - 1 - index / 2;
}

/// The matrix [K, K] with the upper triangle of `gram`, rows and columns in `order`; the rest is uninitialized. An element comes from
/// the row of its own row's column or of its column's, whichever is above the diagonal. Either kind is filled while these rows are
/// in the caches: the first row by row, the second by blocks of columns.
template <typename Real>
at::Tensor reordered_triangle(const at::Tensor& gram, const at::Tensor& order) {
  constexpr std::int64_t kWidth = 16;
  const std::int64_t size = gram.size(0), blocks = (size + kWidth - 1) / kWidth;
  at::Tensor result = at::empty({size, size}, gram.options().dtype(c10::CppTypeToScalarType<Real>::value));
  Real* const target = result.data_ptr<Real>();
  const float* source = gram.const_data_ptr<float>();
  const std::int64_t* column = order.const_data_ptr<std::int64_t>();
  const auto fill_rows = [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i)
      for (std::int64_t j = i; j < size; ++j)
        if (column[i] <= column[j]) target[i * size + j] = source[column[i] * size + column[j]];
  };
  const auto fill_columns = [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = 0; i < last; ++i)
      for (std::int64_t j = std::max(i, first); j < last; ++j)
        if (column[j] < column[i]) target[i * size + j] = source[column[j] * size + column[i]];
  };
  // Every block takes the same time: fewer columns are right of the later rows, and more rows above the later columns.
  at::parallel_for(0, blocks, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t b = begin; b < end; ++b) {
      const std::int64_t first = b * kWidth, last = std::min(first + kWidth, size);
      fill_rows(first, last);
      fill_columns(first, last);
    }
  });
  return result;
}

/// Mirrors a square matrix at its antidiagonal, in place: element (i, j) moves to (last - j, last - i), multiplied by
/// factor[i]. Works tile by tile, exchanging each tile with its mirror image.
template <typename Real>
class AntidiagonalMirror {
 public:
  AntidiagonalMirror(Real* matrix, std::int64_t size, const Real* factor)
      : matrix_(matrix), size_(size), factor_(factor), half_(size / (2 * kTile)), blocks_(2 * half_ + 1) {}

  /// Only tiles on and above the main diagonal, because the mirror maps this part to itself.
  void run() {
    const std::int64_t pairs = half_ + 1;
    at::parallel_for(0, pairs, 1, [&](std::int64_t begin, std::int64_t end) {
      Real own[kLargest][kLargest], other[kLargest][kLargest];
      for (std::int64_t p = begin; p < end; ++p) {
        const std::int64_t i = folded(p, pairs);
        for (std::int64_t j = i; j + i < blocks_; ++j) {
          const std::int64_t mirrored_i = blocks_ - 1 - j, mirrored_j = blocks_ - 1 - i;
          load(i, j, own);
          if (mirrored_i != i) load(mirrored_i, mirrored_j, other);
          store(i, j, own);
          if (mirrored_i != i) store(mirrored_i, mirrored_j, other);
        }
      }
    });
  }

 private:
  // Blocks of kTile from both ends, so that the mirror maps blocks to blocks; the middle block has the remaining size.
  static constexpr std::int64_t kTile = 32, kLargest = 2 * kTile;
  std::int64_t start(std::int64_t block) const {
    return block <= half_ ? block * kTile : size_ - (blocks_ - block) * kTile;
  }

  void load(std::int64_t i, std::int64_t j, Real (&tile)[kLargest][kLargest]) const {
    const std::int64_t columns = start(j + 1) - start(j);
    for (std::int64_t row = start(i); row < start(i + 1); ++row) {
      const Real* source = matrix_ + row * size_ + start(j);
      Real* target = tile[row - start(i)];
      for (std::int64_t c = 0; c < columns; ++c) target[c] = source[c] * factor_[row];
    }
  }

  /// Writes the tile loaded from (i, j) to its mirrored position.
  void store(std::int64_t i, std::int64_t j, const Real (&tile)[kLargest][kLargest]) {
    const std::int64_t rows = start(i + 1) - start(i), last = size_ - 1;
    for (std::int64_t column = start(j); column < start(j + 1); ++column) {
      Real* target = matrix_ + (last - column) * size_ + last - start(i);
      for (std::int64_t r = 0; r < rows; ++r) target[-r] = tile[r][column - start(j)];
    }
  }

  Real* matrix_;
  std::int64_t size_;
  const Real* factor_;
  std::int64_t half_, blocks_;
};

/// The matrix converted to fp32 in its own memory.
at::Tensor narrowed_in_place(const at::Tensor& matrix) {
  if (matrix.scalar_type() == at::kFloat) return matrix;
  const double* source = matrix.const_data_ptr<double>();
  auto* bytes = static_cast<std::uint8_t*>(matrix.mutable_data_ptr());
  // Forwards, because an element's new position is not after its old one. Copied as bytes, because the types overlap.
  for (std::int64_t i = 0; i < matrix.numel(); ++i) {
    const auto value = static_cast<float>(source[i]);
    std::memcpy(bytes + i * static_cast<std::int64_t>(sizeof(value)), &value, sizeof(value));
  }
  return at::from_blob(
      bytes, matrix.sizes(), [matrix](void*) {}, at::kFloat);
}

template <typename Real>
std::optional<HessianFactor> factorize_on_cpu(const at::Tensor& gram, const FactorizeOptions& options) {
  HessianFactor factor;
  factor.order = column_order(gram.diagonal(), options);
  at::Tensor matrix = reordered_triangle<Real>(gram, factor.order.flip(0));
  prepare_diagonal(matrix.diagonal(), options.dampening);
  if (!factorize_upper(matrix)) return std::nullopt;
  const at::Tensor diagonal = matrix.diagonal();
  factor.pivots = diagonal.flip(0).square().to(at::kFloat);
  // F[i, j] = lower[last - i, last - j] / lower[last - j, last - j], and lower[r, c] is matrix[c, r].
  const at::Tensor inverse = diagonal.reciprocal().contiguous();
  AntidiagonalMirror<Real>(matrix.data_ptr<Real>(), matrix.size(0), inverse.const_data_ptr<Real>()).run();
  matrix.diagonal().zero_();
  factor.feedback = narrowed_in_place(matrix);
  return factor;
}

/// For devices other than the CPU.
std::optional<HessianFactor> factorize_on_device(const at::Tensor& gram, const FactorizeOptions& options) {
  const auto [factors, definite] = factorize_together({gram}, options);
  if (!definite.front()) return std::nullopt;
  return HessianFactor{factors.order[0], factors.feedback[0], factors.pivots[0]};
}

}  // namespace

void prepare_diagonal(const at::Tensor& diagonal, double dampening) {
  diagonal.masked_fill_(diagonal.eq(0), 1);
  diagonal.add_(diagonal.mean(-1, /*keepdim=*/true) * dampening);
}

at::Tensor column_order(const at::Tensor& diagonal, const FactorizeOptions& options) {
  const std::int64_t columns = diagonal.numel(), width = options.group_columns;
  if (!options.activation_order) return at::arange(columns, diagonal.options().dtype(at::kLong));
  // Stable, so that equal columns keep their order and the result does not depend on the sort.
  const auto descending = [](const at::Tensor& keys) {
    return at::argsort(keys, /*stable=*/true, /*dim=*/0, /*descending=*/true);
  };
  at::Tensor order = descending(diagonal);
  if (width <= 0) return order;
  // Columns are sorted, then ordered by the rank of their group; the stable sort keeps the order inside a group.
  const std::int64_t groups = (columns + width - 1) / width;
  const at::Tensor filled = at::constant_pad_nd(diagonal, {0, groups * width - columns}, -1).view({groups, width});
  const at::Tensor rank = at::argsort(descending(filled.amax(1)));
  return order.index_select(0, at::argsort(rank.index_select(0, order.floor_divide(width)), /*stable=*/true));
}

std::optional<HessianFactor> factorize(const at::Tensor& gram, const FactorizeOptions& options) {
  if (!gram.is_cpu()) return factorize_on_device(gram, options);
  const at::Tensor rows = gram.to(at::kFloat).contiguous();
  return options.double_precision ? factorize_on_cpu<double>(rows, options) : factorize_on_cpu<float>(rows, options);
}

std::uint64_t factor_bytes(std::int64_t columns) {
  const auto size = static_cast<std::uint64_t>(columns);
  constexpr std::uint64_t kBytesPerColumn = 64;  // order, diagonals, memory for sorting
  return size * size * sizeof(float) + size * kBytesPerColumn;
}

std::uint64_t factorize_workspace(std::int64_t columns, at::Device device) {
  return device.is_cpu() ? factor_bytes(columns) + factorize_upper_workspace(columns)
                         : factorize_together_workspace(1, columns);
}

}  // namespace layerpress::kernels
