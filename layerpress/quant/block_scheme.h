#pragma once

#include <ATen/core/Tensor.h>

#include "layerpress/gguf/blocks/block_type.h"
#include "layerpress/quant/scheme.h"

namespace layerpress::quant {

/// The scheme of weights that are stored as blocks of one of ggml's types; its format is the type's name. Codes of a QuantizedWeight
/// [rows, columns] are then the blocks, uint8 [rows, type.row_bytes(columns)], and the others are undefined.
QuantizationScheme block_scheme(const gguf::BlockType& type);

/// ggml's type of the scheme's weights; null: they are not blocks.
const gguf::BlockType* block_type(const QuantizationScheme& scheme);

/// The scheme of the same blocks with a factor beside them, QuantizedWeight::global_scale: of NVFP4, whose scales of groups are
/// fractions of it. Null for other schemes.
const QuantizationScheme* with_scaled_blocks(const QuantizationScheme& scheme);

/// That factor for a weight, fp32 [1] on the CPU: the greatest scale of a group becomes 240, beyond which ggml rounds scales coarsely.
at::Tensor scale_of_blocks(const at::Tensor& weight);

}  // namespace layerpress::quant
