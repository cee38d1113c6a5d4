#pragma once

#include <memory>
#include <string>

#include "layerpress/base/json.h"
#include "layerpress/compression/modifier.h"

namespace layerpress::modifier {

/// How blocks are chosen.
enum class BlockRounding {
  kNearest,  ///< each value for itself, as llama-quantize does
  kGptq      ///< with GPTQ's feedback
};

/// Whether a quantizing modifier's arguments name ggml's types: `config_groups` whose groups have no weights and the name of a type as
/// their format. Malformed arguments name none.
bool names_block_types(const OrderedJson& arguments);

/// A quantizer to blocks of ggml's types. Arguments: config_groups {name: {targets, format}}, ignore ([]).
///
/// kNearest: the same bytes as llama-quantize's. `weight_observer: hessian` weighs errors by the mean squares of the inputs, as
/// an importance matrix does, and needs data.
///
/// kGptq: GPTQ with blocks in activation order (gguf/blocks/block_gptq.h). Further arguments: dampening_frac (0.01) and error_propagation as
/// GPTQModifier's, and weight_observer: minmax, with which the scales of a block are chosen once and not twice. Where the Gram matrix cannot be
/// factorized, for floats (F16, ...) and for embeddings, it rounds to nearest.
std::unique_ptr<compression::Modifier> make_block_quantizer(const OrderedJson& arguments, const std::string& where,
                                                            BlockRounding rounding);

}  // namespace layerpress::modifier
