#include "layerpress/quant/containers/fp4_format.h"

#include <ATen/ATen.h>

#include "layerpress/quant/pack.h"
#include "layerpress/quant/weight_parameters.h"

namespace layerpress::quant {

std::vector<NamedTensorSpec> Fp4Format::layout(const QuantizationArgs& weights, std::int64_t rows, std::int64_t columns,
                                               at::ScalarType weight_dtype) const {
  std::vector<NamedTensorSpec> specs = {{"weight_packed", at::kByte, {rows, columns / 2}}};
  add_scale_specs(weights, rows, columns, weight_dtype, specs);
  return specs;
}

std::vector<NamedTensor> Fp4Format::write(const QuantizationArgs&, const QuantizedWeight& weight) const {
  std::vector<NamedTensor> tensors = {{"weight_packed", pack_nibbles(weight.codes)}};
  add_scales(weight, tensors);
  return tensors;
}

QuantizedWeight Fp4Format::read(const QuantizationArgs& weights, const ModuleReader& reader) const {
  const at::Tensor packed = reader.get("weight_packed", at::kByte);
  if (packed.dim() != 2 || packed.numel() == 0)
    reader.refuse("weight_packed", fmt::format("shape {}, expected [rows, columns / 2]", shape_text(packed.sizes())));
  QuantizedWeight weight;
  weight.codes = unpack_nibbles(packed);
  read_scales(weights, reader, "weight_packed", weight);
  refuse_zero_points(reader);
  return weight;
}

}  // namespace layerpress::quant
