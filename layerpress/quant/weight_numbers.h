#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "layerpress/kernels/numbers/number_formats.h"
#include "layerpress/quant/scheme.h"

namespace layerpress::quant {

/// The widths of floats that there are.
std::vector<int> float_widths();

/// The numbers (kernels/numbers/number_formats.h) that a weight's arguments ask for.
kernels::ElementType element_of(const QuantizationArgs& weights);

/// The dtype of codes in QuantizedWeight: int8 for integers, float8_e4m3fn for fp8, uint8 with the four bits of fp4.
at::ScalarType code_dtype(const QuantizationArgs& weights);

/// The dtype in which scales are stored for a weight of `weight_dtype`: e4m3 (NVFP4), a byte (MX), otherwise that
/// dtype.
at::ScalarType scale_dtype(const QuantizationArgs& weights, at::ScalarType weight_dtype);

/// Names the dtype of the scales where a scheme leaves it to the format, as older recipes do.
void name_scale_dtype(QuantizationArgs& weights);

/// Whether the weight's scales are stored as multiples of 1 / global scale (NVFP4).
bool has_global_scale(const QuantizationArgs& weights);

/// Whether its scales are powers of two (MX formats).
bool has_power_scales(const QuantizationArgs& weights);

/// The global scale with which all scales fit e4m3: 1 / largest * (448 * 6), each rounded to the weight's dtype as
/// compressed-tensors does. `largest`: greatest magnitude in the weight and in all that engines fuse with it.
float global_scale(const QuantizationArgs& weights, double largest, at::ScalarType weight_dtype);

/// The rounding of scales in kernels. `largest` as above; ignored without a global scale.
kernels::ScaleFormat scale_format(const QuantizationArgs& weights, at::ScalarType weight_dtype, double largest = 0);

/// Scales in fp32, as kernels choose and use them, in the dtype that is stored.
at::Tensor stored_scales(const at::Tensor& scales, const kernels::ScaleFormat& format);

/// The inverse. `global_scale`: fp32 [1], or undefined.
at::Tensor wide_scales(const at::Tensor& stored, const at::Tensor& global_scale);

}  // namespace layerpress::quant
