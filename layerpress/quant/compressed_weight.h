#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "layerpress/quant/quantized_weight.h"

namespace layerpress::quant {

/// The tensors that the scheme's container format (container_format.h) writes for a weight [rows, columns] of
/// `weight_dtype` in the original.
std::vector<NamedTensorSpec> compressed_layout(const QuantizationScheme& scheme, std::int64_t rows,
                                               std::int64_t columns, at::ScalarType weight_dtype);

/// The tensors themselves, same suffixes, dtypes and shapes as compressed_layout. Tensors come back on the CPU,
/// contiguous. Throws InternalError when codes, scales or zero points have the wrong dtype, shape or range, RecipeError
/// when a scale is NaN or infinite.
std::vector<NamedTensor> compress(const QuantizationScheme& scheme, const QuantizedWeight& weight);

/// Reads back a compressed weight. `tensor(suffix)` returns the stored tensor or nothing. Dtypes, shapes and codes are
/// validated (CheckpointError naming `module`).
QuantizedWeight decompress(const QuantizationScheme& scheme, const std::string& module,
                           const std::function<std::optional<at::Tensor>(const std::string& suffix)>& tensor);

/// (codes - zero_point) * scale in fp32, rounded to `dtype`; [N, K] on the codes' device. compressed-tensors multiplies
/// in the scale's dtype. For scales in `dtype` this gives the same bits, because the product of a code and a 16-bit
/// scale is exact in fp32. For a wider `dtype`, the result is that of compressed-tensors after the scales are converted
/// to `dtype`.
at::Tensor dequantize(const QuantizationScheme& scheme, const QuantizedWeight& weight, at::ScalarType dtype);

/// Bytes that dequantize takes on a device besides its result; 0 on the CPU, which works row by row.
std::uint64_t dequantize_workspace(std::int64_t rows, std::int64_t columns, at::Device device);

/// ‖original - Q‖ / ‖original‖, where Q is the weight dequantized to the original's dtype; 0 for a zero original. On
/// the CPU nothing of the weight's size is allocated.
double relative_error(const QuantizationScheme& scheme, const at::Tensor& original, const QuantizedWeight& weight);

/// Bytes that the codes, scales and zero points of a weight [rows, columns] of `weight_dtype` hold.
std::uint64_t quantized_bytes(const QuantizationArgs& weights, std::int64_t rows, std::int64_t columns,
                              at::ScalarType weight_dtype);
/// The same for weights of any scheme, dense ones too.
std::uint64_t quantized_bytes(const QuantizationScheme& scheme, std::int64_t rows, std::int64_t columns,
                              at::ScalarType weight_dtype);

}  // namespace layerpress::quant
