#include "layerpress/quant/row_transfer.h"

#include <ATen/ATen.h>
#include <c10/util/accumulate.h>

#include <cstring>

#include "layerpress/quant/pack.h"

namespace layerpress::quant {
namespace {

bool is_packed(const QuantizationArgs& weights) { return weights.type == NumberType::kInt && weights.num_bits < 8; }

/// 32-bit words that a row's packed codes take.
std::int64_t words_per_row(const QuantizationArgs& weights, std::int64_t columns) {
  return (columns * weights.num_bits + 31) / 32;
}

std::uint64_t code_bytes(const QuantizationArgs& weights, std::int64_t rows, std::int64_t columns) {
  const std::int64_t row_bytes = is_packed(weights) ? 4 * words_per_row(weights, columns) : columns;
  return static_cast<std::uint64_t>(rows * row_bytes);
}

std::uint64_t scale_count(const QuantizationArgs& weights, std::int64_t rows, std::int64_t columns) {
  return static_cast<std::uint64_t>(c10::multiply_integers(scale_shape(weights, rows, columns)));
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

std::uint64_t transfer_bytes(const QuantizationArgs& weights, std::int64_t rows, std::int64_t columns,
                             at::ScalarType scale_dtype) {
  if (rows == 0) return 0;
  const std::uint64_t scales = scale_count(weights, rows, columns);
  return code_bytes(weights, rows, columns) + scales * c10::elementSize(scale_dtype) + (weights.symmetric ? 0 : scales);
}

void write_transfer(const QuantizationArgs& weights, const QuantizedWeight& weight, std::uint8_t* target) {
  append(is_packed(weights) ? pack_int32(weight.codes.to(at::kCPU), weights.num_bits) : weight.codes, target);
  append(weight.scale, target);
  if (!weights.symmetric) append(weight.zero_point, target);
}

QuantizedWeight read_transfer(const QuantizationArgs& weights, std::int64_t rows, std::int64_t columns,
                              at::ScalarType scale_dtype, std::uint8_t* source) {
  QuantizedWeight weight;
  if (is_packed(weights)) {
    const at::Tensor packed = take({rows, words_per_row(weights, columns)}, at::kInt, source);
    weight.codes = unpack_int32(packed, weights.num_bits, columns);
  } else {
    const at::ScalarType dtype = weights.type == NumberType::kFloat ? at::kFloat8_e4m3fn : at::kChar;
    weight.codes = take({rows, columns}, dtype, source);
  }
  const std::vector<std::int64_t> shape = scale_shape(weights, rows, columns);
  weight.scale = take(shape, scale_dtype, source);
  if (!weights.symmetric) weight.zero_point = take(shape, at::kChar, source);
  return weight;
}

std::int64_t rows_per_scale(const QuantizationArgs& weights) {
  switch (weights.strategy) {
    case Strategy::kGroup:
    case Strategy::kChannel:
      return 1;
    case Strategy::kBlock:
      return (*weights.block_structure)[0];
    default:
      return 0;
  }
}

QuantizedWeight join_rows(const std::vector<QuantizedWeight>& parts) {
  std::vector<at::Tensor> codes, scales, zero_points;
  for (const QuantizedWeight& part : parts) {
    // As bytes, because not all operations support fp8.
    codes.push_back(part.codes.view(at::kChar));
    scales.push_back(part.scale);
    if (part.zero_point.defined()) zero_points.push_back(part.zero_point);
  }
  QuantizedWeight joined;
  joined.codes = at::cat(codes).view(parts.front().codes.scalar_type());
  joined.scale = at::cat(scales);
  if (!zero_points.empty()) joined.zero_point = at::cat(zero_points);
  return joined;
}

}  // namespace layerpress::quant
