#include "layerpress/quant/containers/plain_format.h"

namespace layerpress::quant {
namespace {

/// fp8.
class FloatQuantized : public PlainFormat {
 public:
  std::string name() const override { return "float-quantized"; }
  bool holds(const QuantizationArgs& weights) const override { return weights.is_float(8) && !weights.scale_dtype; }
  bool is_default_for(const QuantizationScheme& scheme) const override { return scheme.input_activations.has_value(); }
};

}  // namespace

const ContainerFormat& float_quantized() {
  static const FloatQuantized kFormat;
  return kFormat;
}

}  // namespace layerpress::quant
