#include "layerpress/quant/rounding/static_inputs.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cctype>
#include <cmath>

#include "layerpress/base/text.h"
#include "layerpress/quant/rounding/value_parameters.h"

namespace layerpress::quant {
namespace {

constexpr double kLargestFp8 = 448;

struct CodeRange {
  double least = 0, greatest = 0;
};

CodeRange codes_of(const QuantizationArgs& inputs) {
  if (inputs.type == NumberType::kFloat) return {-kLargestFp8, kLargestFp8};
  return {static_cast<double>(inputs.minimum_code()), static_cast<double>(inputs.maximum_code())};
}

/// Elements whose errors are computed at once.
constexpr std::int64_t kElements = 1 << 20;

at::Tensor rounded(const at::Tensor& x, const QuantizationArgs& inputs, const InputScale& scale) {
  const CodeRange codes = codes_of(inputs);
  at::Tensor q = x.div(scale.scale).add_(scale.zero_point).clamp_(codes.least, codes.greatest);
  if (inputs.type == NumberType::kFloat)
    q = q.to(at::kFloat8_e4m3fn).to(at::kFloat);
  else
    q.round_();
  return q.sub_(scale.zero_point).mul_(scale.scale);
}

}  // namespace

InputObserverSettings parse_input_observer(const std::string& given, const Json& kwargs, const std::string& where) {
  std::string name = given;
  for (char& c : name) c = c == '-' ? '_' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  InputObserverSettings settings;
  if (name == "static_minmax")
    settings.observer = InputObserver::kRange;
  else if (name == "minmax")
    settings.observer = InputObserver::kMovingRange;
  else if (name == "mse")
    settings.observer = InputObserver::kMovingError;
  else
    throw RecipeError(
        "[recipe.observer] {}: observer '{}' is not implemented for inputs; static_minmax, minmax and mse are", where,
        given);
  settings.search = parse_observer(name, kwargs, where);
  if (const auto share = kwargs.find("averaging_constant"); share != kwargs.end()) {
    if (!share->is_number() || !(share->get<double>() > 0) || share->get<double>() > 1)
      throw RecipeError("[recipe.observer] {}: averaging_constant is {}; it must be a number above 0 and at most 1",
                        where, share->dump());
    settings.averaging_constant = share->get<double>();
  }
  return settings;
}

InputScale input_scale_of(const QuantizationArgs& inputs, double least, double greatest) {
  const CodeRange codes = codes_of(inputs);
  const double low = std::min(least, 0.0), high = std::max(greatest, 0.0);  // zero must be representable
  if (inputs.symmetric) return {std::max(-low, high) / ((codes.greatest - codes.least) / 2), 0};
  const double scale = (high - low) / (codes.greatest - codes.least);
  if (scale == 0) return {0, 0};
  return {scale, std::clamp(std::nearbyint(codes.least - low / scale), codes.least, codes.greatest)};
}

double input_error(const at::Tensor& x, const QuantizationArgs& inputs, double least, double greatest, double norm) {
  InputScale scale = input_scale_of(inputs, least, greatest);
  if (scale.scale == 0) scale.scale = scale_epsilon(x.scalar_type());
  const std::int64_t step = std::max<std::int64_t>(1, kElements / std::max<std::int64_t>(1, x.size(1)));
  double error = 0;
  for (std::int64_t first = 0; first < x.size(0); first += step) {
    const at::Tensor some = x.narrow(0, first, std::min(step, x.size(0) - first)).to(at::kFloat);
    error += rounded(some, inputs, scale).sub_(some).abs_().pow_(norm).sum(at::kDouble).item<double>();
  }
  return error;
}

}  // namespace layerpress::quant
