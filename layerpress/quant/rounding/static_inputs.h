#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "layerpress/quant/rounding/observer.h"
#include "layerpress/quant/scheme.h"

namespace layerpress::quant {

/// The observers of values whose scales are stored (value_parameters.h), with LLM Compressor's names and meanings.
/// - kRange ("static_minmax"): the range of all tokens.
/// - kMovingRange ("minmax"): the moving average of the samples' ranges, in the order of the calibration set.
/// - kMovingError ("mse"): the same of shrunken ranges, each with the smallest sum |error|^norm for its sample.
enum class InputObserver { kRange, kMovingRange, kMovingError };

struct InputObserverSettings {
  InputObserver observer = InputObserver::kMovingRange;
  double averaging_constant = 0.01;  ///< the share of a new sample
  ObserverSettings search{};         ///< of kMovingError
};

/// Throws RecipeError naming `where` for unknown names and keys.
InputObserverSettings parse_input_observer(const std::string& name, const Json& kwargs, const std::string& where);

/// The scale and the zero point of values in a range, before the scale is rounded to the stored dtype.
struct InputScale {
  double scale = 0;       ///< 0 for an empty range
  double zero_point = 0;  ///< of asymmetric integers, rounded
};
InputScale input_scale_of(const QuantizationArgs& inputs, double least, double greatest);

/// sum |x - q(x)|^norm for the range [least, greatest].
double input_error(const at::Tensor& x, const QuantizationArgs& inputs, double least, double greatest, double norm);

}  // namespace layerpress::quant
