#pragma once

#include <string>

#include "layerpress/gguf/block_type.h"
#include "layerpress/quant/scheme.h"

namespace layerpress::quant {

/// The scheme of weights that are stored as blocks of one of ggml's types; its format is the type's name. Codes of a QuantizedWeight
/// [rows, columns] are then the blocks, uint8 [rows, type.row_bytes(columns)], and the others are undefined.
QuantizationScheme block_scheme(const gguf::BlockType& type);

/// ggml's type of the scheme's weights; null: they are not blocks.
const gguf::BlockType* block_type(const QuantizationScheme& scheme);

}  // namespace layerpress::quant
