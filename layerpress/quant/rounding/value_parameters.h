#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "layerpress/quant/quantized_weight.h"

namespace layerpress::quant {

/// A value whose parameters are stored with a module: a linear's input, an attention's queries, keys and values.
struct StoredValue {
  std::string name;  ///< begins the names of its tensors: "input", "q", "k", "v"
  const QuantizationArgs* args = nullptr;
  at::ScalarType dtype = at::kBFloat16;  ///< of the module's weights
  std::int64_t heads = 1;                ///< with strategy attn_head: runs of channels with a scale of their own
};

/// Whether values of these arguments have stored parameters: not if their scales are found when the model is served.
bool has_stored_parameters(const QuantizationArgs& args);

/// Whether a scheme's linears have stored parameters of their inputs.
bool has_stored_inputs(const QuantizationScheme& scheme);

/// The tensors in which they are stored. Static scales are "NAME_scale" in the weights' dtype, with "NAME_zero_point" for
/// asymmetric integers. NVFP4's group scales are found when the model is served; "NAME_global_scale", fp32 [1], is their
/// divisor.
std::vector<NamedTensorSpec> parameter_layout(const StoredValue& value);

/// The same with their content, for values within a range: fp64 [2, channels], least and greatest of each. A scale of 0
/// becomes the dtype's epsilon, as in compressed-tensors. REQUIRES: the range is finite.
std::vector<NamedTensor> parameters_of(const StoredValue& value, const at::Tensor& range);

/// What compressed-tensors takes for a scale of 0.
double scale_epsilon(at::ScalarType dtype);

}  // namespace layerpress::quant
