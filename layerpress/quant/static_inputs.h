#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "layerpress/quant/observer.h"
#include "layerpress/quant/quantized_weight.h"

namespace layerpress::quant {

/// The observers of inputs whose scales are stored, with LLM Compressor's names and meanings.
/// - kRange ("static_minmax"): the range of all tokens.
/// - kMovingRange ("minmax"): the moving average of the samples' ranges, in the order of the calibration set.
/// - kMovingError ("mse"): the same of shrunken ranges, each with the smallest sum |error|^norm for its sample.
enum class InputObserver { kRange, kMovingRange, kMovingError };

struct InputObserverSettings {
  InputObserver observer = InputObserver::kMovingRange;
  double averaging_constant = 0.01;  ///< the share of a new sample
  ObserverSettings search{};         ///< of kMovingError
};

/// Whether the inputs of a scheme's linears have a stored scale: one per tensor, `input_scale`.
bool has_static_inputs(const QuantizationScheme& scheme);

/// Throws RecipeError naming `where` for unknown names and keys.
InputObserverSettings parse_input_observer(const std::string& name, const Json& kwargs, const std::string& where);

/// The scale and the zero point of values in a range, before the scale is rounded to the stored dtype.
struct InputScale {
  double scale = 0;       ///< 0 for an empty range
  double zero_point = 0;  ///< of asymmetric integers, rounded
};
InputScale input_scale_of(const QuantizationArgs& inputs, double least, double greatest);

/// Sets the input's scale, and its zero point if it has one. A scale of 0 becomes the dtype's epsilon, as in compressed-tensors.
void set_input_scale(const QuantizationArgs& inputs, const InputScale& scale, at::ScalarType weight_dtype,
                     QuantizedWeight& weight);

/// The tensors that stand for the scale of a linear's input; none if it is not stored.
std::vector<NamedTensorSpec> input_layout(const QuantizationScheme& scheme, at::ScalarType weight_dtype);
/// The same with their content. Throws InternalError if they are missing.
std::vector<NamedTensor> input_tensors(const QuantizationScheme& scheme, const QuantizedWeight& weight);

/// sum |x - q(x)|^norm for the range [least, greatest].
double input_error(const at::Tensor& x, const QuantizationArgs& inputs, double least, double greatest, double norm);

}  // namespace layerpress::quant
