#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "layerpress/quant/scheme.h"

namespace layerpress::quant {

/// A weight in codes. Shapes for weight [N, K]: scale [N, K/group] (group), [N, 1] (channel), [1] (tensor),
/// [ceil(N/rows), ceil(K/columns)] (block), in the dtype that is stored; zero_point int8 of scale's shape for asymmetric
/// schemes, else undefined. Codes: int8 [N, K] for integer types, float8_e4m3fn [N, K] for fp8.
struct QuantizedWeight {
  at::Tensor codes;
  at::Tensor scale;
  at::Tensor zero_point;
};

/// Shape of the scales (and zero points) of a weight [rows, columns].
std::vector<std::int64_t> scale_shape(const QuantizationArgs& weights, std::int64_t rows, std::int64_t columns);

/// One tensor that replaces `<module>.weight`: suffix ("weight_packed"), dtype, shape.
struct CompressedTensorSpec {
  std::string suffix;
  at::ScalarType dtype;
  std::vector<std::int64_t> shape;
};

/// What a format writes for a weight [rows, columns]; `scale_dtype` is the checkpoint's dtype. compressed_tensors'
/// formats pack-quantized, int-quantized, float-quantized, naive-quantized.
std::vector<CompressedTensorSpec> compressed_layout(const QuantizationScheme& scheme, std::int64_t rows,
                                                    std::int64_t columns, at::ScalarType scale_dtype);

/// The tensors themselves, same suffixes, dtypes and shapes as compressed_layout.
/// Tensors come back on the CPU, contiguous. Throws InternalError when codes, scales or zero points have the wrong dtype,
/// shape or range, RecipeError when a scale is NaN or infinite.
std::vector<std::pair<std::string, at::Tensor>> compress(const QuantizationScheme& scheme,
                                                         const QuantizedWeight& weight);

/// Reads back a compressed weight. `tensor(suffix)` returns the stored tensor or nothing. Dtypes, shapes and codes are
/// validated (CheckpointError naming `module`).
QuantizedWeight decompress(const QuantizationScheme& scheme, const std::string& module,
                           const std::function<std::optional<at::Tensor>(const std::string& suffix)>& tensor);

/// (codes - zero_point) * scale in fp32, rounded to `dtype`; [N, K] on the codes' device. compressed-tensors multiplies
/// in the scale's dtype. For scales in `dtype` this gives the same bits, because the product of a code and a 16-bit
/// scale is exact in fp32. For a wider `dtype`, the result is that of compressed-tensors after the scales are converted
/// to `dtype`.
at::Tensor dequantize(const QuantizationScheme& scheme, const QuantizedWeight& weight, at::ScalarType dtype);

/// ‖original - Q‖ / ‖original‖, where Q is the weight dequantized to the original's dtype; 0 for a zero original. On
/// the CPU nothing of the weight's size is allocated.
double relative_error(const QuantizationScheme& scheme, const at::Tensor& original, const QuantizedWeight& weight);

/// Bytes that the codes, scales and zero points of a weight [rows, columns] hold.
std::uint64_t quantized_bytes(const QuantizationArgs& weights, std::int64_t rows, std::int64_t columns,
                              at::ScalarType scale_dtype);

}  // namespace layerpress::quant
