#pragma once

#include <cstdint>
#include <vector>

#include "layerpress/quant/compressed_weight.h"

namespace layerpress::quant {

/// The form in which a compressed weight, of `weight_dtype` in the original, travels between processes: integer and fp4 codes packed
/// to their bits, fp8 bytes, then scales and zero points unchanged; a dense weight or one in blocks as it is, behind the
/// factor of blocks. Only processes of the same program
/// read this layout.
std::uint64_t transfer_bytes(const QuantizationScheme& scheme, std::int64_t rows, std::int64_t columns,
                             at::ScalarType weight_dtype);

/// Writes transfer_bytes bytes.
void write_transfer(const QuantizationScheme& scheme, const QuantizedWeight& weight, std::uint8_t* target);

/// Reads the weight back; tensors that need no unpacking are views of `source` (aligned to 8 bytes).
QuantizedWeight read_transfer(const QuantizationScheme& scheme, std::int64_t rows, std::int64_t columns,
                              at::ScalarType weight_dtype, std::uint8_t* source);

/// The number of rows that share scales: a weight may be cut at its multiples; 0 if all rows share a scale.
std::int64_t rows_per_scale(const QuantizationArgs& weights);

/// Concatenates weights that are consecutive rows of one weight; the result owns its memory.
QuantizedWeight join_rows(const std::vector<QuantizedWeight>& parts);

}  // namespace layerpress::quant
