#include "layerpress/kernels/products/hadamard.h"

#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <utility>

#include "layerpress/base/error.h"

namespace layerpress::kernels {
namespace {

constexpr std::int64_t kLargestBase = 1024;  // its product takes that many operations for an element

bool is_prime(std::int64_t number) {
  if (number < 2) return false;
  for (std::int64_t divisor = 2; divisor * divisor <= number; ++divisor)
    if (number % divisor == 0) return false;
  return true;
}

/// 0, 1 or -1: whether numbers modulo a prime are 0, squares, or neither.
std::vector<double> quadratic_characters(std::int64_t prime) {
  std::vector<double> characters(static_cast<std::size_t>(prime), -1);
  for (std::int64_t number = 1; number < prime; ++number) characters[number * number % prime] = 1;
  characters[0] = 0;
  return characters;
}

using Matrix = std::vector<double>;

/// Paley's first construction, of order prime + 1 for primes 4k + 3: I + S, where S has a border of 1 and -1 around the characters of
/// differences.
Matrix first_construction(std::int64_t prime) {
  const std::int64_t order = prime + 1;
  const std::vector<double> characters = quadratic_characters(prime);
  Matrix matrix(static_cast<std::size_t>(order * order), 1);
  for (std::int64_t i = 1; i < order; ++i) {
    matrix[i * order] = -1;
    for (std::int64_t j = 1; j < order; ++j) matrix[i * order + j] = i == j ? 1 : characters[(i - j + prime) % prime];
  }
  return matrix;
}

/// Paley's second construction, of order 2 (prime + 1) for primes 4k + 1: each entry of the symmetric matrix of characters with a
/// border of ones becomes a 2 x 2 block.
Matrix second_construction(std::int64_t prime) {
  const std::int64_t inner = prime + 1, order = 2 * inner;
  const std::vector<double> characters = quadratic_characters(prime);
  Matrix matrix(static_cast<std::size_t>(order * order));
  for (std::int64_t i = 0; i < inner; ++i)
    for (std::int64_t j = 0; j < inner; ++j) {
      const double entry = i == j ? 0 : i == 0 || j == 0 ? 1 : characters[(i - j + prime) % prime];
      double* block = matrix.data() + 2 * i * order + 2 * j;
      block[0] = i == j ? 1 : entry;
      block[1] = block[order] = i == j ? -1 : entry;
      block[order + 1] = i == j ? -1 : -entry;
    }
  return matrix;
}

/// A Hadamard matrix of this order that is not made of smaller ones; empty if none is known.
Matrix base_matrix(std::int64_t order) {
  if (order == 1) return {1};
  if (order % 4 != 0) return {};
  if (is_prime(order - 1)) return first_construction(order - 1);
  if (const std::int64_t prime = order / 2 - 1; prime % 4 == 1 && is_prime(prime)) return second_construction(prime);
  return {};
}

/// Sums and differences of neighbouring parts of `half` numbers, of all `count` numbers.
void butterfly(double* values, std::int64_t count, std::int64_t half) {
  for (std::int64_t first = 0; first < count; first += 2 * half) {
    double* __restrict low = values + first;
    double* __restrict high = low + half;
    for (std::int64_t i = 0; i < half; ++i) {
      const double sum = low[i] + high[i];
      high[i] = low[i] - high[i];
      low[i] = sum;
    }
  }
}

/// values <- values B, by lanes.
void multiply_base(double* values, const Matrix& matrix, std::int64_t order, std::int64_t lanes,
                   std::vector<double>& sums) {
  std::fill(sums.begin(), sums.end(), 0);
  for (std::int64_t from = 0; from < order; ++from)
    for (std::int64_t to = 0; to < order; ++to) {
      const double entry = matrix[from * order + to];
      const double* __restrict own = values + from * lanes;
      double* __restrict sum = sums.data() + to * lanes;
      for (std::int64_t lane = 0; lane < lanes; ++lane) sum[lane] += entry * own[lane];
    }
  std::copy(sums.begin(), sums.end(), values);
}

}  // namespace

std::shared_ptr<const Hadamard> Hadamard::of_size(std::int64_t size, Seeded seeded) {
  if (size < 1) return nullptr;
  const std::shared_ptr<Hadamard> made(new Hadamard);
  std::int64_t base = size;
  while (base % 2 == 0) base /= 2;
  for (; base <= size && base <= kLargestBase; base *= 2) {
    made->matrix_of_base_ = base_matrix(base);
    if (!made->matrix_of_base_.empty()) break;
  }
  if (made->matrix_of_base_.empty()) return nullptr;
  made->size_ = size, made->base_ = base;
  std::mt19937_64 random(0);  // its numbers are the same everywhere
  if (seeded == Seeded::kPermuted) {
    made->order_.resize(static_cast<std::size_t>(size));
    std::iota(made->order_.begin(), made->order_.end(), 0);
    for (std::size_t i = made->order_.size(); i > 1; --i) std::swap(made->order_[i - 1], made->order_[random() % i]);
  }
  for (std::int64_t i = 0; seeded == Seeded::kSigned && i < size; ++i)
    made->signs_.push_back(random() >> 63 == 0 ? 1 : -1);
  return made;
}

void Hadamard::apply(double* values, std::int64_t lanes) const {
  const std::int64_t count = size_ * lanes;
  std::vector<double> ordered, sums;
  double* own = values;
  if (!order_.empty()) {
    ordered.resize(static_cast<std::size_t>(count));
    own = ordered.data();
    for (std::int64_t i = 0; i < size_; ++i) std::copy_n(values + order_[i] * lanes, lanes, own + i * lanes);
  }
  for (std::int64_t i = 0; !signs_.empty() && i < size_; ++i)
    for (std::int64_t lane = 0; lane < lanes; ++lane) own[i * lanes + lane] *= signs_[i];
  const std::int64_t part = base_ * lanes;
  for (std::int64_t half = part; half < count; half *= 2) butterfly(own, count, half);
  if (base_ > 1) {
    sums.resize(static_cast<std::size_t>(part));
    for (std::int64_t first = 0; first < count; first += part)
      multiply_base(own + first, matrix_of_base_, base_, lanes, sums);
  }
  const double factor = 1 / std::sqrt(static_cast<double>(size_));
  for (std::int64_t i = 0; i < count; ++i) own[i] *= factor;
  for (std::int64_t i = 0; !order_.empty() && i < size_; ++i)
    std::copy_n(own + i * lanes, lanes, values + order_[i] * lanes);
}

at::Tensor Hadamard::matrix() const {
  at::Tensor matrix = at::eye(size_, at::kDouble);
  for (std::int64_t row = 0; row < size_; ++row) apply(matrix.mutable_data_ptr<double>() + row * size_, 1);
  return matrix;
}

namespace {

constexpr std::int64_t kRotatedTile = 1 << 16;  // elements that a thread rotates at once, if the rotations allow it

std::int64_t tiles_in(std::int64_t count, std::int64_t size) { return (count + size - 1) / size; }

/// Blocks of rows that L rotates, each with a rotation's size of rows, and runs of other rows.
std::vector<MatrixRotation::Run> blocks_of_rows(std::int64_t rows, const MatrixRotation& rotation) {
  std::vector<MatrixRotation::Run> blocks;
  std::int64_t next = 0;
  const auto others = [&](std::int64_t end) {
    if (end > next) blocks.push_back({next, end - next});
  };
  for (const MatrixRotation::Run& run : rotation.rows) {
    others(run.first);
    for (std::int64_t first = run.first; first < run.first + run.count; first += rotation.of_rows->size())
      blocks.push_back({first, rotation.of_rows->size()});
    next = run.first + run.count;
  }
  others(rows);
  return blocks;
}

bool is_rotated(std::int64_t row, const MatrixRotation& rotation) {
  return rotation.of_rows != nullptr && std::any_of(rotation.rows.begin(), rotation.rows.end(), [&](const auto& run) {
           return row >= run.first && row < run.first + run.count;
         });
}

std::int64_t columns_of_tile(std::int64_t columns, std::int64_t rows, const MatrixRotation& rotation) {
  const std::int64_t unit = rotation.of_columns == nullptr ? 1 : rotation.of_columns->size();
  return std::min(columns, unit * std::max<std::int64_t>(1, kRotatedTile / std::max<std::int64_t>(1, rows * unit)));
}

std::int64_t most_rows_of_tile(const MatrixRotation& rotation, std::int64_t columns) {
  return rotation.of_rows != nullptr ? rotation.of_rows->size()
                                     : std::max<std::int64_t>(1, kRotatedTile / std::max<std::int64_t>(1, columns));
}

void check_rotation(const at::Tensor& weight, const MatrixRotation& rotation, std::int64_t columns) {
  const auto divides = [](const std::shared_ptr<const Hadamard>& own, std::int64_t count) {
    return own == nullptr || count % own->size() == 0;
  };
  bool fits = weight.dim() == 1 || weight.dim() == 2;
  fits = fits && divides(rotation.of_columns, columns) &&
         (!rotation.factors.defined() || rotation.factors.numel() == columns);
  std::int64_t next = 0;
  for (const MatrixRotation::Run& run : rotation.rows) {
    fits = fits && divides(rotation.of_rows, run.count) && run.first >= next && run.count > 0;
    next = run.first + run.count;
  }
  if (!fits || next > weight.size(0)) throw InternalError("[kernels.hadamard] a rotation does not fit its weight");
}

/// Rotates a tile [rows, columns].
void rotate_tile(double* tile, std::int64_t rows, std::int64_t columns, bool rotates_rows,
                 const MatrixRotation& rotation, const double* factors) {
  for (std::int64_t row = 0; row < rows; ++row) {
    double* own = tile + row * columns;
    for (std::int64_t c = 0; factors != nullptr && c < columns; ++c) own[c] *= factors[c];
    if (rotation.of_columns != nullptr)
      for (std::int64_t c = 0; c < columns; c += rotation.of_columns->size()) rotation.of_columns->apply(own + c, 1);
  }
  if (rotates_rows) rotation.of_rows->apply(tile, columns);
}

}  // namespace

at::Tensor rotated(const at::Tensor& input, const MatrixRotation& rotation) {
  const std::int64_t columns = input.dim() == 2 ? input.size(1) : 1;
  check_rotation(input, rotation, columns);
  const at::Tensor weight = input.contiguous();
  at::Tensor result = at::empty_like(weight);
  const at::Tensor factors = rotation.factors.defined() ? rotation.factors.to(at::kDouble).contiguous() : at::Tensor();
  std::vector<MatrixRotation::Run> blocks;  // of rows
  const std::int64_t most = most_rows_of_tile(rotation, columns);
  for (const MatrixRotation::Run& run : blocks_of_rows(weight.size(0), rotation))
    for (std::int64_t first = 0; first < run.count; first += most)
      blocks.push_back({run.first + first, std::min(most, run.count - first)});
  const std::int64_t width = columns_of_tile(columns, most, rotation), across = tiles_in(columns, width);
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, weight.scalar_type(), "rotated", [&] {
    const auto* source = weight.const_data_ptr<scalar_t>();
    auto* target = result.mutable_data_ptr<scalar_t>();
    const double* scales = factors.defined() ? factors.const_data_ptr<double>() : nullptr;
    at::parallel_for(0, std::ssize(blocks) * across, 1, [&](std::int64_t begin, std::int64_t end) {
      std::vector<double> tile(static_cast<std::size_t>(most * width));
      for (std::int64_t t = begin; t < end; ++t) {
        const MatrixRotation::Run& block = blocks[static_cast<std::size_t>(t / across)];
        const std::int64_t first = t % across * width, count = std::min(width, columns - first);
        for (std::int64_t row = 0; row < block.count; ++row)
          std::copy_n(source + (block.first + row) * columns + first, count, tile.data() + row * count);
        rotate_tile(tile.data(), block.count, count, is_rotated(block.first, rotation), rotation,
                    scales == nullptr ? nullptr : scales + first);
        for (std::int64_t row = 0; row < block.count; ++row)
          std::transform(tile.data() + row * count, tile.data() + (row + 1) * count,
                         target + (block.first + row) * columns + first,
                         [](double value) { return static_cast<scalar_t>(value); });
      }
    });
  });
  return result;
}

std::uint64_t rotation_workspace(const std::vector<std::int64_t>& shape, const MatrixRotation& rotation) {
  const std::int64_t columns = shape.size() == 2 ? shape[1] : 1, rows = most_rows_of_tile(rotation, columns);
  const std::int64_t width = columns_of_tile(columns, rows, rotation);
  const std::int64_t of_thread = 3 * rows * width;  // a tile, and what a permuted or a based transform copies of it
  return sizeof(double) * static_cast<std::uint64_t>(at::get_num_threads() * of_thread + 2 * columns);
}

}  // namespace layerpress::kernels
