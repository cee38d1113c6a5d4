#include "layerpress/quant/containers/plain_format.h"

namespace layerpress::quant {
namespace {

/// Integers of up to 8 bits, a byte each.
class IntQuantized : public PlainFormat {
 public:
  std::string name() const override { return "int-quantized"; }
  bool holds(const QuantizationArgs& weights) const override {
    return weights.type == NumberType::kInt && weights.num_bits <= 8;
  }
  bool is_default_for(const QuantizationScheme& scheme) const override {
    return scheme.weights->type == NumberType::kInt && scheme.input_activations &&
           !is_packed_with_fp8_activations(*scheme.weights, *scheme.input_activations);
  }

 private:
  /// Schemes that vLLM's CompressedTensorsW4A8Fp8 runs.
  static bool is_packed_with_fp8_activations(const QuantizationArgs& weights, const QuantizationArgs& activations) {
    return weights.num_bits == 4 && weights.symmetric && weights.strategy == Strategy::kGroup &&
           weights.group_size == 128 && activations.is_float(8) && activations.strategy == Strategy::kToken &&
           activations.symmetric;
  }
};

}  // namespace

const ContainerFormat& int_quantized() {
  static const IntQuantized kFormat;
  return kFormat;
}

}  // namespace layerpress::quant
