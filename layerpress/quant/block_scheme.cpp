#include "layerpress/quant/block_scheme.h"

#include <ATen/ATen.h>

namespace layerpress::quant {

QuantizationScheme block_scheme(const gguf::BlockType& type) {
  QuantizationScheme scheme;
  scheme.format = type.name();
  return scheme;
}

const gguf::BlockType* block_type(const QuantizationScheme& scheme) {
  return scheme.weights || scheme.format == kDenseFormat ? nullptr : gguf::find_block_type(scheme.format);
}

const QuantizationScheme* with_scaled_blocks(const QuantizationScheme& scheme) {
  static const gguf::BlockType* const kType = gguf::find_block_type("NVFP4");
  static const QuantizationScheme kScaled = [] {
    QuantizationScheme scaled = block_scheme(*kType);
    scaled.scaled_blocks = true;
    return scaled;
  }();
  return block_type(scheme) == kType ? &kScaled : nullptr;
}

at::Tensor scale_of_blocks(const at::Tensor& weight) {
  constexpr double kGreatestLevel = 6, kGreatestScale = 240;
  const double largest = weight.numel() == 0 ? 0 : at::amax(at::abs(weight)).item<double>();
  return at::full({1}, largest > 0 ? largest / (kGreatestLevel * kGreatestScale) : 1, at::kFloat);
}

bool is_dense(const QuantizationScheme& scheme) { return !scheme.weights && block_type(scheme) == nullptr; }

}  // namespace layerpress::quant
