#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "layerpress/kernels/cpu/table.h"

namespace layerpress::kernels {

/// What an instruction set's kernels take tensors of this dtype for. REQUIRES: has_value_type().
cpu::ValueType value_type(at::ScalarType dtype);
bool has_value_type(at::ScalarType dtype);

/// Whether values of this dtype are multiplied by bf16 dot products on a CPU.
bool multiplies_pairs(at::ScalarType dtype);

/// Rows of a contiguous matrix on the CPU from `first` on, as many as there are but at most `count`.
cpu::StoredRows stored_rows(const at::Tensor& matrix, std::int64_t first, std::int64_t count);

/// What tiles compute: rows of x times one weight's rows, or times those of a gate and an up projection. Outputs are taken in
/// panels of two halves. Tensors are contiguous, on the CPU, and outlive it.
struct Product {
  const at::Tensor& x;       ///< [rows, features]
  const at::Tensor& first;   ///< weight, or that of the gate: [outputs, features]
  const at::Tensor& second;  ///< weight, or that of what is gated
  const void* bias;          ///< [outputs] of y's dtype, or null
  at::Tensor& y;             ///< [rows, outputs]
  bool gated;

  std::int64_t panels() const;
  /// Rows of a weight that are half of a panel, none where there are no more outputs.
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
