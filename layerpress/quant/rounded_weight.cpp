#include "layerpress/quant/rounded_weight.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "layerpress/quant/compressed_weight.h"
#include "layerpress/quant/observer.h"
#include "layerpress/quant/weight_numbers.h"

namespace layerpress::quant {

at::Tensor rounded_weight(const at::Tensor& weight, const QuantizationScheme& scheme, double largest) {
  const QuantizationArgs& args = *scheme.weights;
  const kernels::ScaleFormat stored = scale_format(args, weight.scalar_type(), largest);
  const kernels::ChosenScales scales = choose_scales(weight, args, {}, stored, {});
  const at::Tensor codes =
      kernels::round_to_nearest(weight, scale_grid(args, weight.size(0), weight.size(1)), element_of(args), scales);
  return dequantize(scheme, to_quantized_weight(args, codes, scales, stored), weight.scalar_type());
}

std::uint64_t rounded_weight_workspace(const QuantizationScheme& scheme, std::int64_t rows, std::int64_t columns,
                                       at::ScalarType dtype, const at::Device& device) {
  const QuantizationArgs& args = *scheme.weights;
  return quantized_bytes(args, rows, columns, dtype) +
         std::max(observe_workspace(args, {}, rows, columns, device),
                  kernels::round_workspace(rows, columns, scale_grid(args, rows, columns), device));
}

}  // namespace layerpress::quant
