#include "layerpress/quant/rounding/value_parameters.h"

#include <ATen/ATen.h>

#include <limits>

#include "layerpress/quant/rounding/static_inputs.h"
#include "layerpress/quant/weight_numbers.h"

namespace layerpress::quant {
namespace {

bool is_by_head(const StoredValue& value) { return value.args->strategy == Strategy::kAttentionHead; }

/// One element per range, as they are stored.
at::Tensor shaped(const StoredValue& value, const std::vector<double>& numbers, at::ScalarType dtype) {
  at::Tensor tensor = at::tensor(numbers, at::kDouble).to(at::kFloat).to(dtype);
  return is_by_head(value) ? tensor.view({value.heads, 1, 1}) : tensor;
}

}  // namespace

double scale_epsilon(at::ScalarType dtype) {
  if (dtype == at::kBFloat16) return std::numeric_limits<c10::BFloat16>::epsilon();
  if (dtype == at::kHalf) return std::numeric_limits<c10::Half>::epsilon();
  return std::numeric_limits<float>::epsilon();
}

bool has_stored_parameters(const QuantizationArgs& args) { return args.dynamic != Dynamic::kTrue; }

bool has_stored_inputs(const QuantizationScheme& scheme) {
  return scheme.input_activations && has_stored_parameters(*scheme.input_activations);
}

std::vector<NamedTensorSpec> parameter_layout(const StoredValue& value) {
  if (has_global_scale(*value.args)) return {{value.name + "_global_scale", at::kFloat, {1}}};
  std::vector<std::int64_t> shape = {1};
  if (is_by_head(value)) shape = {value.heads, 1, 1};
  std::vector<NamedTensorSpec> specs = {{value.name + "_scale", value.dtype, shape}};
  if (!value.args->symmetric) specs.push_back({value.name + "_zero_point", at::kChar, shape});
  return specs;
}

std::vector<NamedTensor> parameters_of(const StoredValue& value, const at::Tensor& range) {
  const at::Tensor by_head = range.view({2, is_by_head(value) ? value.heads : 1, -1});
  const at::Tensor least = by_head[0].amin(1), greatest = by_head[1].amax(1);
  if (has_global_scale(*value.args)) {
    const double largest = at::maximum(least.neg(), greatest).item<double>();
    return {{value.name + "_global_scale", at::full({1}, global_scale(*value.args, largest, value.dtype), at::kFloat)}};
  }
  std::vector<double> scales, zero_points;
  for (std::int64_t head = 0; head < least.size(0); ++head) {
    const InputScale found = input_scale_of(*value.args, least[head].item<double>(), greatest[head].item<double>());
    scales.push_back(found.scale), zero_points.push_back(found.zero_point);
  }
  at::Tensor scale = shaped(value, scales, value.dtype);
  scale.masked_fill_(scale.eq(0), scale_epsilon(value.dtype));
  std::vector<NamedTensor> tensors = {{value.name + "_scale", scale}};
  if (!value.args->symmetric) tensors.push_back({value.name + "_zero_point", shaped(value, zero_points, at::kChar)});
  return tensors;
}

}  // namespace layerpress::quant
