#include "layerpress/quant/rounding/row_transfer.h"

#include <ATen/ATen.h>

#include <cstring>

#include "layerpress/quant/pack.h"
#include "layerpress/quant/weight_numbers.h"

namespace layerpress::quant {
namespace {

bool is_packed(const QuantizationArgs& weights) { return weights.num_bits < 8; }

bool has_nibbles(const QuantizationArgs& weights) { return code_dtype(weights) == at::kByte; }

/// Bytes that a row's codes take: fp4 in halves of bytes, integers in 32-bit words.
std::int64_t row_bytes(const QuantizationArgs& weights, std::int64_t columns) {
  if (has_nibbles(weights)) return columns / 2;
  return is_packed(weights) ? 4 * packed_words(columns, weights.num_bits) : columns;
}

at::Tensor packed_codes(const QuantizationArgs& weights, const at::Tensor& codes) {
  if (has_nibbles(weights)) return pack_nibbles(codes);
  return is_packed(weights) ? pack_int32(codes.to(at::kCPU), weights.num_bits) : codes;
}

void append(const at::Tensor& tensor, std::uint8_t*& target) {
  const at::Tensor plain = tensor.to(at::kCPU).contiguous();
  std::memcpy(target, plain.const_data_ptr(), plain.nbytes());
  target += plain.nbytes();
}

at::Tensor take(const std::vector<std::int64_t>& shape, at::ScalarType dtype, std::uint8_t*& source) {
  at::Tensor tensor = at::from_blob(source, shape, dtype);
  source += tensor.nbytes();
  return tensor;
}

}  // namespace

std::uint64_t transfer_bytes(const QuantizationScheme& scheme, std::int64_t rows, std::int64_t columns,
                             at::ScalarType weight_dtype) {
  if (rows == 0) return 0;
  const std::uint64_t unpacked = quantized_bytes(scheme, rows, columns, weight_dtype);
  if (!scheme.weights) return unpacked;
  return unpacked - static_cast<std::uint64_t>(rows * columns) +  // a byte for each code
         static_cast<std::uint64_t>(rows * row_bytes(*scheme.weights, columns));
}

void write_transfer(const QuantizationScheme& scheme, const QuantizedWeight& weight, std::uint8_t* target) {
  if (is_unchanged(scheme)) return;
  // The tensors with the largest alignment come first.
  if (scheme.scaled_blocks) append(weight.global_scale, target);
  if (!scheme.weights) return append(weight.codes, target);
  const QuantizationArgs& weights = *scheme.weights;
  if (has_global_scale(weights)) append(weight.global_scale, target);
  append(packed_codes(weights, weight.codes), target);
  append(weight.scale, target);
  if (!weights.symmetric) append(weight.zero_point, target);
}

QuantizedWeight read_transfer(const QuantizationScheme& scheme, std::int64_t rows, std::int64_t columns,
                              at::ScalarType weight_dtype, std::uint8_t* source) {
  QuantizedWeight weight;
  if (is_unchanged(scheme)) return weight;
  if (scheme.scaled_blocks) weight.global_scale = take({1}, at::kFloat, source);
  if (!scheme.weights) {  // one more tensor
    const NamedTensorSpec spec = compressed_layout(scheme, rows, columns, weight_dtype).front();
    weight.codes = take(spec.shape, spec.dtype, source);
    return weight;
  }
  const QuantizationArgs& weights = *scheme.weights;
  if (has_global_scale(weights)) weight.global_scale = take({1}, at::kFloat, source);
  if (has_nibbles(weights))
    weight.codes = unpack_nibbles(take({rows, row_bytes(weights, columns)}, at::kByte, source));
  else if (is_packed(weights))
    weight.codes =
        unpack_int32(take({rows, row_bytes(weights, columns) / 4}, at::kInt, source), weights.num_bits, columns);
  else
    weight.codes = take({rows, columns}, code_dtype(weights), source);
  const std::vector<std::int64_t> shape = scale_shape(weights, rows, columns);
  weight.scale = take(shape, scale_dtype(weights, weight_dtype), source);
  if (!weights.symmetric) weight.zero_point = take(shape, at::kChar, source);
  return weight;
}

std::int64_t rows_per_scale(const QuantizationArgs& weights) {
  switch (weights.strategy) {
    case Strategy::kGroup:
    case Strategy::kTensorGroup:
    case Strategy::kChannel:
      return 1;
    case Strategy::kBlock:
      return (*weights.block_structure)[0];
    default:
      return 0;
  }
}

namespace {

/// A dtype of the same size that all operations know; fp8 is not one.
at::ScalarType bytes_like(const at::Tensor& tensor) {
  return tensor.element_size() == 1 ? at::kChar : tensor.scalar_type();
}

}  // namespace

QuantizedWeight join_rows(const std::vector<QuantizedWeight>& parts) {
  if (!parts.front().codes.defined()) return {};
  std::vector<at::Tensor> codes, scales, zero_points;
  for (const QuantizedWeight& part : parts) {
    codes.push_back(part.codes.view(bytes_like(part.codes)));
    if (part.scale.defined()) scales.push_back(part.scale.view(bytes_like(part.scale)));
    if (part.zero_point.defined()) zero_points.push_back(part.zero_point);
  }
  QuantizedWeight joined;
  joined.codes = at::cat(codes).view(parts.front().codes.scalar_type());
  if (!scales.empty()) joined.scale = at::cat(scales).view(parts.front().scale.scalar_type());
  if (parts.front().global_scale.defined()) joined.global_scale = parts.front().global_scale.clone();
  if (!zero_points.empty()) joined.zero_point = at::cat(zero_points);
  return joined;
}

}  // namespace layerpress::quant
