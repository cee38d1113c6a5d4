#include "layerpress/quant/weight_numbers.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "layerpress/base/error.h"
#include "layerpress/kernels/scales/scale_search.h"

namespace layerpress::quant {
namespace {

using kernels::ScaleType;

/// The floats of each width; compressed-tensors has one of each.
struct FloatElement {
  int bits;
  kernels::ElementType element;
  at::ScalarType codes;  ///< their dtype in QuantizedWeight
};
constexpr FloatElement kFloats[] = {{4, kernels::kE2m1, at::kByte}, {8, kernels::kE4m3, at::kFloat8_e4m3fn}};

const FloatElement& float_of(const QuantizationArgs& weights) {
  for (const FloatElement& own : kFloats)
    if (own.bits == weights.num_bits) return own;
  throw InternalError("[quant.element] {}-bit floats are not supported", weights.num_bits);
}

/// Infinite where the value is too large for fp32, as for the largest weight 0 of a plan.
double rounded_to(at::ScalarType dtype, double value) {
  if (value > std::numeric_limits<float>::max()) return std::numeric_limits<double>::infinity();
  return at::scalar_tensor(value, at::kFloat).to(dtype).to(at::kDouble).item<double>();
}

}  // namespace

std::vector<int> float_widths() {
  std::vector<int> widths;
  for (const FloatElement& own : kFloats) widths.push_back(own.bits);
  return widths;
}

kernels::ElementType element_of(const QuantizationArgs& weights) {
  return weights.type == NumberType::kInt ? kernels::integers(weights.num_bits) : float_of(weights).element;
}

at::ScalarType code_dtype(const QuantizationArgs& weights) {
  return weights.type == NumberType::kInt ? at::kChar : float_of(weights).codes;
}

at::ScalarType scale_dtype(const QuantizationArgs& weights, at::ScalarType weight_dtype) {
  if (has_global_scale(weights)) return at::kFloat8_e4m3fn;
  return has_power_scales(weights) ? at::kByte : weight_dtype;
}

bool has_power_scales(const QuantizationArgs& weights) {
  return weights.scale_dtype == "torch.uint8" || (weights.is_float(4) && weights.strategy == Strategy::kGroup);
}

void name_scale_dtype(QuantizationArgs& weights) {
  if (has_global_scale(weights))
    weights.scale_dtype = "torch.float8_e4m3fn";
  else if (has_power_scales(weights))
    weights.scale_dtype = "torch.uint8";
}

bool has_global_scale(const QuantizationArgs& weights) { return weights.strategy == Strategy::kTensorGroup; }

float global_scale(const QuantizationArgs& weights, double largest, at::ScalarType weight_dtype) {
  const double smallest = weight_dtype == at::kHalf ? 6.103515625e-5 : std::numeric_limits<float>::min();
  const double range = kernels::kLargestE4m3 * element_of(weights).maximum;
  // fp16 cannot represent the scales of small weights; fp32 can.
  for (const at::ScalarType dtype : {weight_dtype, at::kFloat}) {
    const double found = rounded_to(dtype, rounded_to(dtype, 1 / std::max(largest, smallest)) * range);
    if (std::isfinite(found)) return static_cast<float>(found);
  }
  return 1;
}

kernels::ScaleFormat scale_format(const QuantizationArgs& weights, at::ScalarType weight_dtype, double largest) {
  const kernels::ScaleFormat plain = kernels::scales_of_dtype(weight_dtype);
  if (has_global_scale(weights)) return {ScaleType::kE4m3, plain.type, global_scale(weights, largest, weight_dtype)};
  return has_power_scales(weights) ? kernels::ScaleFormat{ScaleType::kE8m0} : plain;
}

at::Tensor stored_scales(const at::Tensor& scales, const kernels::ScaleFormat& format) {
  switch (format.type) {
    case ScaleType::kE4m3:
      // A division and a product in fp32 err by far less than half a step of e4m3.
      return (scales * format.global).to(at::kFloat8_e4m3fn);
    case ScaleType::kE8m0:
      return scales.contiguous().view(at::kInt).bitwise_right_shift(23).to(at::kByte);
    case ScaleType::kBf16:
      return scales.to(at::kBFloat16);
    case ScaleType::kHalf:
      return scales.to(at::kHalf);
    default:
      return scales.to(at::kFloat);
  }
}

at::Tensor wide_scales(const at::Tensor& stored, const at::Tensor& global_scale) {
  if (stored.scalar_type() == at::kByte) {
    const at::Tensor exponent = stored.to(at::kInt);
    return at::where(exponent == 0, 0x00400000, exponent.bitwise_left_shift(23)).to(at::kInt).view(at::kFloat);
  }
  const at::Tensor wide = stored.to(at::kFloat);
  return global_scale.defined() ? wide / global_scale : wide;
}

}  // namespace layerpress::quant
