#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "layerpress/kernels/cpu/table.h"

namespace layerpress::kernels {

/// The value type of this dtype in the kernels. REQUIRES: has_value_type().
cpu::ValueType value_type(at::ScalarType dtype);
bool has_value_type(at::ScalarType dtype);

/// Whether values of this dtype are multiplied by bf16 dot products on a CPU.
bool multiplies_pairs(at::ScalarType dtype);

/// At most `count` rows of a contiguous matrix on the CPU, from `first` on.
cpu::StoredRows stored_rows(const at::Tensor& matrix, std::int64_t first, std::int64_t count);

/// The product that tiles compute: rows of x times one weight's rows, or times those of a gate and an up projection.
/// Outputs are taken in panels of two halves. Tensors are contiguous, on the CPU, and outlive it.
struct Product {
  const at::Tensor& x;       ///< [rows, features]
  const at::Tensor& first;   ///< weight, or that of the gate: [outputs, features]
  const at::Tensor& second;  ///< the weight, or the up projection's
  const void* bias;          ///< [outputs] of y's dtype, or null
  at::Tensor& y;             ///< [rows, outputs]
  bool gated;

  std::int64_t panels() const;
  /// The rows of a weight for half of a panel; none after the last output.
  cpu::StoredRows half(std::int64_t panel, std::int64_t which) const;
  /// Has the places of results in the cache by the time they are there.
  void announce(std::int64_t panel, std::int64_t first_row, std::int64_t rows) const;
  /// Makes y's elements of the sums [rows, kProductPanel] of some rows for a panel.
  void finish(std::int64_t panel, std::int64_t first_row, std::int64_t rows, const float* sums) const;

 private:
  std::int64_t panel_outputs() const { return gated ? cpu::kProductHalf : cpu::kProductPanel; }
  std::byte* place(std::int64_t row, std::int64_t column) const;
};

/// With bf16 dot products, for x and weights of bf16 with an even number of features.
void multiply_pairs(const Product& product);
std::uint64_t pairs_workspace_bytes(std::int64_t rows, std::int64_t features, int threads);

/// In fp32, for values of any type.
void multiply_wide(const Product& product);
std::uint64_t wide_workspace_bytes(std::int64_t rows, std::int64_t features, int threads);

}  // namespace layerpress::kernels
