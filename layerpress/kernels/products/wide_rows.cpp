#include "layerpress/kernels/products/wide_rows.h"

#include <ATen/ATen.h>

#include "layerpress/kernels/cpu/table.h"

namespace layerpress::kernels {

const float* wide_rows(const at::Tensor& weight, std::int64_t first, std::int64_t rows, std::vector<float>& buffer) {
  const std::int64_t columns = weight.size(1);
  if (weight.scalar_type() == at::kFloat) return weight.const_data_ptr<float>() + first * columns;
  buffer.resize(static_cast<std::size_t>(rows * columns));
  if (weight.scalar_type() == at::kBFloat16) {
    const auto* bits = static_cast<const cpu::Bits16*>(weight.const_data_ptr()) + first * columns;
    cpu::table().widen_bf16(bits, buffer.data(), rows * columns);
  } else {
    at::from_blob(buffer.data(), {rows, columns}, at::kFloat).copy_(weight.slice(0, first, first + rows));
  }
  return buffer.data();
}

}  // namespace layerpress::kernels
