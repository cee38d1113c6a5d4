#include "layerpress/quant/containers/plain_format.h"

namespace layerpress::quant {
namespace {

/// fp8 and integers of up to 8 bits, whatever the activations are.
class NaiveQuantized : public PlainFormat {
 public:
  std::string name() const override { return "naive-quantized"; }
  bool holds(const QuantizationArgs& weights) const override {
    return weights.num_bits <= 8 && (weights.type == NumberType::kInt || weights.num_bits == 8) && !weights.scale_dtype;
  }
  bool is_default_for(const QuantizationScheme&) const override { return true; }
};

}  // namespace

const ContainerFormat& naive_quantized() {
  static const NaiveQuantized kFormat;
  return kFormat;
}

}  // namespace layerpress::quant
