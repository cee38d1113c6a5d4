#include "layerpress/quant/containers/plain_format.h"

#include "layerpress/quant/weight_numbers.h"
#include "layerpress/quant/weight_parameters.h"

namespace layerpress::quant {

std::vector<NamedTensorSpec> PlainFormat::layout(const QuantizationArgs& weights, std::int64_t rows,
                                                 std::int64_t columns, at::ScalarType weight_dtype) const {
  std::vector<NamedTensorSpec> specs = {{"weight", code_dtype(weights), {rows, columns}}};
  add_scale_specs(weights, rows, columns, weight_dtype, specs);
  add_zero_point_specs(weights, rows, columns, specs);
  return specs;
}

std::vector<NamedTensor> PlainFormat::write(const QuantizationArgs&, const QuantizedWeight& weight) const {
  std::vector<NamedTensor> tensors = {{"weight", stored(weight.codes)}};
  add_scales(weight, tensors);
  add_zero_points(weight, tensors);
  return tensors;
}

QuantizedWeight PlainFormat::read(const QuantizationArgs& weights, const ModuleReader& reader) const {
  QuantizedWeight weight;
  weight.codes = read_plain_codes(weights, reader);
  read_scales(weights, reader, "weight", weight);
  read_zero_points(weights, reader, weight);
  return weight;
}

}  // namespace layerpress::quant
