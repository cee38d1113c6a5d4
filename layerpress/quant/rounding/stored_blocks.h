#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "layerpress/gguf/blocks/block_type.h"
#include "layerpress/quant/quantized_weight.h"

namespace layerpress::quant {

/// Whether weights in the blocks of `scheme` hold the values of weights that are stored in this scheme: integers in groups of a multiple of the blocks'
/// columns, with a scale each, of which only scales, and what asymmetric groups begin at, are rounded to 16 bits; or FP4 in MXFP4, and
/// in NVFP4 that has the factor of scaled blocks. The columns of a group are
/// neighbours: the activation orders that a scheme can name keep them together, and a source that does not has no codes in this form.
bool holds_values(const QuantizationScheme& scheme, const QuantizationScheme& stored, std::int64_t columns);

/// The blocks of such a weight, uint8 [rows, type.row_bytes(columns)]; nothing if a scale is too small or too large for them.
/// Multi-threaded.
std::optional<at::Tensor> blocks_of(const gguf::BlockType& type, const QuantizationScheme& stored,
                                    const QuantizedWeight& weight);

}  // namespace layerpress::quant
