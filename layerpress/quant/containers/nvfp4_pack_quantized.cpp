#include "layerpress/quant/containers/fp4_format.h"

namespace layerpress::quant {
namespace {

/// fp4 with an e4m3 scale per 16 columns, "weight_scale" F8_E4M3, that is divided by "weight_global_scale" F32 [1].
class Nvfp4PackQuantized : public Fp4Format {
 public:
  std::string name() const override { return "nvfp4-pack-quantized"; }
  bool holds(const QuantizationArgs& weights) const override {
    return weights.is_float(4) && weights.strategy == Strategy::kTensorGroup && weights.group_size == 16;
  }
  bool is_default_for(const QuantizationScheme& scheme) const override {
    const QuantizationArgs& weights = *scheme.weights;
    return weights.is_float(4) && weights.group_size == 16;
  }
};

}  // namespace

const ContainerFormat& nvfp4_pack_quantized() {
  static const Nvfp4PackQuantized kFormat;
  return kFormat;
}

}  // namespace layerpress::quant
