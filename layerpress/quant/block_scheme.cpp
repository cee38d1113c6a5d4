#include "layerpress/quant/block_scheme.h"

namespace layerpress::quant {

QuantizationScheme block_scheme(const gguf::BlockType& type) {
  QuantizationScheme scheme;
  scheme.format = type.name();
  return scheme;
}

const gguf::BlockType* block_type(const QuantizationScheme& scheme) {
  return scheme.weights || scheme.format == kDenseFormat ? nullptr : gguf::find_block_type(scheme.format);
}

bool is_dense(const QuantizationScheme& scheme) { return !scheme.weights && block_type(scheme) == nullptr; }

}  // namespace layerpress::quant
