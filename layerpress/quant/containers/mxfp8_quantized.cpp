#include "layerpress/quant/containers/plain_format.h"

namespace layerpress::quant {
namespace {

/// fp8 with a power of two per 32 columns: "weight" F8_E4M3 [rows, columns], "weight_scale" U8 [rows, columns / 32].
class Mxfp8Quantized : public PlainFormat {
 public:
  std::string name() const override { return "mxfp8-quantized"; }
  bool holds(const QuantizationArgs& weights) const override {
    return weights.is_float(8) && weights.strategy == Strategy::kGroup && weights.group_size == 32 &&
           weights.scale_dtype == "torch.uint8";
  }
  bool is_default_for(const QuantizationScheme& scheme) const override { return holds(*scheme.weights); }
};

}  // namespace

const ContainerFormat& mxfp8_quantized() {
  static const Mxfp8Quantized kFormat;
  return kFormat;
}

}  // namespace layerpress::quant
