#include "layerpress/kernels/products/product.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "layerpress/base/error.h"
#include "layerpress/kernels/instruction_set.h"

namespace layerpress::kernels {

bool has_value_type(at::ScalarType dtype) {
  return dtype == at::kBFloat16 || dtype == at::kHalf || dtype == at::kFloat;
}

bool multiplies_pairs(at::ScalarType dtype) { return dtype == at::kBFloat16 && cpu::table().product_tile != nullptr; }

at::ScalarType arithmetic(at::ScalarType dtype) { return multiplies_pairs(dtype) ? at::kBFloat16 : at::kFloat; }

cpu::ValueType value_type(at::ScalarType dtype) {
  if (dtype == at::kBFloat16) return cpu::ValueType::kBFloat16;
  if (dtype == at::kHalf) return cpu::ValueType::kHalf;
  if (dtype == at::kFloat) return cpu::ValueType::kFloat;
  throw InternalError("[kernels.product] no kernel takes {}", at::toString(dtype));
}

cpu::StoredRows stored_rows(const at::Tensor& matrix, std::int64_t first, std::int64_t count) {
  const std::int64_t stride = matrix.stride(0), rows = std::clamp<std::int64_t>(matrix.size(0) - first, 0, count);
  const auto* values = static_cast<const std::byte*>(matrix.const_data_ptr());
  const std::int64_t skipped = rows == 0 ? 0 : first * stride * static_cast<std::int64_t>(matrix.element_size());
  return {.values = values + skipped, .type = value_type(matrix.scalar_type()), .count = rows, .stride = stride};
}

std::int64_t Product::panels() const { return (first.size(0) + panel_outputs() - 1) / panel_outputs(); }

cpu::StoredRows Product::half(std::int64_t panel, std::int64_t which) const {
  if (gated) return stored_rows(which == 0 ? first : second, panel * cpu::kProductHalf, cpu::kProductHalf);
  return stored_rows(first, panel * cpu::kProductPanel + which * cpu::kProductHalf, cpu::kProductHalf);
}

std::byte* Product::place(std::int64_t row, std::int64_t column) const {
  const auto size = static_cast<std::int64_t>(y.element_size());
  return static_cast<std::byte*>(y.data_ptr()) + (row * y.size(1) + column) * size;
}

void Product::announce(std::int64_t panel, std::int64_t first_row, std::int64_t rows) const {
  const std::byte* announced = place(first_row, panel * panel_outputs());
  const std::int64_t stride = y.size(1) * static_cast<std::int64_t>(y.element_size());
  for (std::int64_t row = 0; row < rows; ++row, announced += stride) __builtin_prefetch(announced, /*rw=*/1);
}

void Product::finish(std::int64_t panel, std::int64_t first_row, std::int64_t rows, const float* sums) const {
  const std::int64_t column = panel * panel_outputs();
  cpu::ProductResult result{.sums = sums,
                            .rows = rows,
                            .columns = std::min(panel_outputs(), y.size(1) - column),
                            .bias = bias,
                            .type = value_type(y.scalar_type()),
                            .y = place(first_row, column),
                            .stride = y.size(1)};
  if (bias != nullptr)
    result.bias = static_cast<const std::byte*>(bias) + column * static_cast<std::int64_t>(y.element_size());
  (gated ? cpu::table().product_gate : cpu::table().product_round)(result);
}

}  // namespace layerpress::kernels
