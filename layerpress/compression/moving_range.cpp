#include "layerpress/compression/moving_range.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "layerpress/base/error.h"

namespace layerpress::compression {
namespace {

using quant::InputObserver;

int candidates_of(const quant::InputObserverSettings& settings) {
  return static_cast<int>(settings.search.maxshrink * settings.search.grid);
}

/// The weight of sample `place` of `all`.
double weight_of(double share, std::int64_t place, std::int64_t all) {
  return (place == 0 ? 1 : share) * std::pow(1 - share, static_cast<double>(all - 1 - place));
}

}  // namespace

MovingRange::MovingRange(const quant::InputObserverSettings& settings, const quant::QuantizationArgs& inputs)
    : settings_(settings), inputs_(inputs), name_(name_of(settings, inputs)) {}

std::string MovingRange::name_of(const quant::InputObserverSettings& settings, const quant::QuantizationArgs& inputs) {
  std::string name = fmt::format("moving_range {}", settings.averaging_constant);
  if (settings.observer == InputObserver::kMovingError)
    name += fmt::format(" {}{}{} {} {} {} {} {}", quant::name_of(inputs.type), inputs.num_bits,
                        inputs.symmetric ? "" : " asymmetric", settings.search.maxshrink, settings.search.grid,
                        settings.search.norm, settings.search.patience, settings.search.expand);
  return name;
}

std::pair<double, double> MovingRange::range_of(const at::Tensor& x) const {
  const auto [low, high] = at::aminmax(x);
  const double least = low.item<double>(), greatest = high.item<double>();
  if (settings_.observer != InputObserver::kMovingError) return {least, greatest};
  const double widest = settings_.search.expand;
  double best = widest, smallest = std::numeric_limits<double>::infinity();
  int in_vain = 0;
  for (int i = 0; i < candidates_of(settings_); ++i) {
    const double share = widest * (1 - i / settings_.search.grid);
    const double error = quant::input_error(x, inputs_, share * least, share * greatest, settings_.search.norm);
    if (error < smallest)
      smallest = error, best = share, in_vain = 0;
    else if (++in_vain >= settings_.search.patience)
      break;
  }
  return {best * least, best * greatest};
}

void MovingRange::add(at::Tensor& figures, const StatisticInput& input, const RowRange&) const {
  const at::Tensor& x = input.values[0];
  const SampleRows& samples = input.samples;
  for (std::size_t i = 0; i + 1 < samples.offsets.size(); ++i) {
    const std::int64_t first = samples.offsets[i], count = samples.offsets[i + 1] - first;
    if (count == 0) continue;
    const auto [least, greatest] = range_of(x.narrow(0, first, count));
    const double weight = weight_of(settings_.averaging_constant, samples.places.at(i), samples.all);
    figures.select(0, 0).add_(weight * least);
    figures.select(0, 1).add_(weight * greatest);
    figures.select(0, 2).add_(weight);
  }
}

double MovingRange::flops(double tokens, std::int64_t features, const RowRange&) const {
  const bool searches = settings_.observer == InputObserver::kMovingError;
  return tokens * static_cast<double>(features) * (2 + (searches ? 48.0 * candidates_of(settings_) : 0));
}

std::uint64_t MovingRange::workspace_bytes(std::int64_t features, at::ScalarType, int) const {
  if (settings_.observer != InputObserver::kMovingError) return 4 * sizeof(float);
  return 4 * sizeof(float) * static_cast<std::uint64_t>(std::max<std::int64_t>(1 << 20, features));
}

void MovingRange::divide_channels(at::Tensor&, const at::Tensor&) const {
  throw InternalError("[compression.statistic] a range of whole samples does not follow the division of channels");
}

}  // namespace layerpress::compression
