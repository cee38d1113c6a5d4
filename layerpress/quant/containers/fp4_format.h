#pragma once

#include "layerpress/quant/container_format.h"

namespace layerpress::quant {

/// The formats that store two fp4 codes per byte, the even column in the low half: "weight_packed" U8
/// [rows, columns / 2]. They differ in their scales.
class Fp4Format final : public ContainerFormat {
 public:
  using ContainerFormat::ContainerFormat;
  std::vector<NamedTensorSpec> layout(const QuantizationArgs& weights, std::int64_t rows, std::int64_t columns,
                                      at::ScalarType weight_dtype) const override;
  std::vector<NamedTensor> write(const QuantizationArgs& weights, const QuantizedWeight& weight) const override;
  QuantizedWeight read(const QuantizationArgs& weights, const ModuleReader& reader) const override;
};

}  // namespace layerpress::quant
