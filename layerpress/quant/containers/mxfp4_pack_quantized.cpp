#include "layerpress/quant/containers/fp4_format.h"

namespace layerpress::quant {
namespace {

/// fp4 with a power of two per 32 columns: "weight_scale" U8 [rows, columns / 32], its exponent with 127 added.
class Mxfp4PackQuantized : public Fp4Format {
 public:
  std::string name() const override { return "mxfp4-pack-quantized"; }
  bool holds(const QuantizationArgs& weights) const override {
    return weights.is_float(4) && weights.strategy == Strategy::kGroup && weights.group_size == 32;
  }
  bool is_default_for(const QuantizationScheme& scheme) const override {
    const QuantizationArgs& weights = *scheme.weights;
    return weights.is_float(4) && weights.group_size == 32;
  }
};

}  // namespace

const ContainerFormat& mxfp4_pack_quantized() {
  static const Mxfp4PackQuantized kFormat;
  return kFormat;
}

}  // namespace layerpress::quant
