#include "layerpress/quant/rounding/rounded_weight.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "layerpress/gguf/blocks/block_rows.h"
#include "layerpress/kernels/solver/scaled_columns.h"
#include "layerpress/quant/block_scheme.h"
#include "layerpress/quant/compressed_weight.h"
#include "layerpress/quant/rounding/observer.h"
#include "layerpress/quant/weight_numbers.h"

namespace layerpress::quant {
namespace {

at::Tensor rounded_to_blocks(const at::Tensor& weight, const at::Tensor& scale, const QuantizationScheme& scheme) {
  const gguf::BlockType& type = *block_type(scheme);
  at::Tensor scaled = kernels::scaled_columns(weight, scale).to(at::kCPU);
  const at::Tensor factor = scheme.scaled_blocks ? scale_of_blocks(scaled) : at::ones({1});
  if (scheme.scaled_blocks) scaled = scaled.to(at::kFloat).div(factor);
  const at::Tensor blocks = gguf::round_rows(type, scaled, /*importance=*/{});
  const at::Tensor values = gguf::decode_rows(type, blocks, weight.size(1)).mul_(factor);
  return kernels::scaled_columns(values.to(weight.options()), at::reciprocal(scale));
}

}  // namespace

at::Tensor rounded_weight(const at::Tensor& weight, const at::Tensor& scale, const QuantizationScheme& scheme,
                          double largest) {
  if (block_type(scheme) != nullptr) return rounded_to_blocks(weight, scale, scheme);
  const QuantizationArgs& args = *scheme.weights;
  const kernels::ScaleGrid grid = scale_grid(args, weight.size(0), weight.size(1));
  const kernels::ScaleFormat stored = scale_format(args, weight.scalar_type(), largest);
  if (kernels::rounds_scaled_columns(weight.device(), weight.scalar_type(), grid))
    return kernels::rounded_scaled_columns(weight, scale, {grid, range_rule(args), stored});
  const at::Tensor scaled = kernels::scaled_columns(weight, scale);
  const kernels::ChosenScales scales = choose_scales(scaled, args, {}, stored, {});
  const at::Tensor codes = kernels::round_to_nearest(scaled, grid, element_of(args), scales);
  return kernels::scaled_columns(
      dequantize(scheme, to_quantized_weight(args, codes, scales, stored), weight.scalar_type()),
      at::reciprocal(scale));
}

std::uint64_t rounded_weight_workspace(const QuantizationScheme& scheme, std::int64_t rows, std::int64_t columns,
                                       at::ScalarType dtype, const at::Device& device) {
  if (block_type(scheme) != nullptr)
    return kernels::scaled_columns_workspace(columns, device) + quantized_bytes(scheme, rows, columns, dtype) +
           static_cast<std::uint64_t>(rows * columns) * (2 * c10::elementSize(dtype) + sizeof(float));
  const QuantizationArgs& args = *scheme.weights;
  const kernels::ScaleGrid grid = scale_grid(args, rows, columns);
  const std::uint64_t scaling = kernels::scaled_columns_workspace(columns, device);
  if (kernels::rounds_scaled_columns(device, dtype, grid)) return scaling;
  return scaling + static_cast<std::uint64_t>(2 * rows * columns) * c10::elementSize(dtype) +
         quantized_bytes(args, rows, columns, dtype) +
         std::max(observe_workspace(args, {}, rows, columns, device),
                  kernels::round_workspace(rows, columns, grid, device));
}

}  // namespace layerpress::quant
