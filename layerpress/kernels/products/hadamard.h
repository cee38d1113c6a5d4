#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace layerpress::kernels {

/// An orthogonal matrix R [size, size] of entries ±1/√size, applied in fp64 by a fast transform: R = H ⊗ B, where H is a Sylvester
/// matrix and B a smallest Hadamard matrix by which the size is a power of two greater: of order 1 (so that R is Sylvester's), or
/// made by Paley's constructions (12, 20, 28, 36, 60, 84, 108, 140, ...). A seed gives other matrices of the same kind.
class Hadamard {
 public:
  enum class Seeded {
    kNot,       ///< R
    kPermuted,  ///< rows and columns of R in one random order
    kSigned     ///< rows of R with random signs
  };

  /// Null if no such matrix of this size is known here.
  static std::shared_ptr<const Hadamard> of_size(std::int64_t size, Seeded seeded = Seeded::kNot);

  std::int64_t size() const { return size_; }
  std::int64_t base() const { return base_; }  ///< order of B

  /// v <- v R for `lanes` vectors at once; element i of vector j is values[i * lanes + j].
  void apply(double* values, std::int64_t lanes) const;

  /// R as a tensor, fp64.
  at::Tensor matrix() const;

 private:
  Hadamard() = default;
  std::int64_t size_ = 0, base_ = 1;
  std::vector<double> matrix_of_base_;  // [base, base], ±1
  std::vector<std::int64_t> order_;     // element i of the transformed vector is element order_[i]; empty: in order
  std::vector<double> signs_;           // empty: none
};

/// A weight [rows, columns] between two rotations, or a vector [rows]: W <- Lᵀ W diag(columns' factors) R, where L and R have a
/// rotation in each block of its size on their diagonals. Rows outside of `rows` stay.
struct MatrixRotation {
  struct Run {
    std::int64_t first = 0, count = 0;  ///< a multiple of the rotation's size
  };
  std::shared_ptr<const Hadamard> of_rows{};     ///< L's; null: none
  std::vector<Run> rows{};                       ///< that L rotates
  std::shared_ptr<const Hadamard> of_columns{};  ///< R's; null: none
  at::Tensor factors{};                          ///< fp64 [columns]; undefined: none
};

/// The rotated weight in its own dtype (fp32, bf16, fp16 or fp64), computed in fp64 and rounded once. Multi-threaded; the result does
/// not depend on the threads.
at::Tensor rotated(const at::Tensor& weight, const MatrixRotation& rotation);

/// Bytes that rotated() allocates besides its result.
std::uint64_t rotation_workspace(const std::vector<std::int64_t>& shape, const MatrixRotation& rotation);

}  // namespace layerpress::kernels
