#include "layerpress/compression/statistics/moving_range.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

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

std::string name_of(const quant::InputObserverSettings& settings, const quant::QuantizationArgs& inputs,
                    std::int64_t run) {
  std::string name = fmt::format("moving_range {} per {}", settings.averaging_constant, run);
  if (settings.observer == InputObserver::kMovingError)
    name += fmt::format(" {}{}{} {} {} {} {} {}", quant::name_of(inputs.type), inputs.num_bits,
                        inputs.symmetric ? "" : " asymmetric", settings.search.maxshrink, settings.search.grid,
                        settings.search.norm, settings.search.patience, settings.search.expand);
  return name;
}

}  // namespace

MovingRange::MovingRange(const quant::InputObserverSettings& settings, const quant::QuantizationArgs& inputs,
                         std::int64_t run)
    : settings_(settings), inputs_(inputs), run_(run), name_(name_of(settings, inputs, run)) {}

/// The search ends when so many candidates in a row improve no run, as in LLM Compressor.
at::Tensor MovingRange::shares_of(const at::Tensor& x, const at::Tensor& ranges) const {
  const double widest = settings_.search.expand;
  const std::int64_t runs = ranges.size(1), width = x.size(1) / runs;
  at::Tensor best = at::full({runs}, widest, at::kDouble);
  std::vector<double> smallest(static_cast<std::size_t>(runs), std::numeric_limits<double>::infinity());
  int in_vain = 0;
  for (int i = 0; i < candidates_of(settings_); ++i) {
    const double share = widest * (1 - i / settings_.search.grid);
    bool improved = false;
    for (std::int64_t run = 0; run < runs; ++run) {
      const double error =
          quant::input_error(x.narrow(1, run * width, width), inputs_, share * ranges[0][run].item<double>(),
                             share * ranges[1][run].item<double>(), settings_.search.norm);
      double& least = smallest[static_cast<std::size_t>(run)];
      if (error >= least) continue;
      least = error, improved = true;
      best[run] = share;
    }
    in_vain = improved ? 0 : in_vain + 1;
    if (in_vain >= settings_.search.patience) break;
  }
  return best;
}

at::Tensor MovingRange::ranges_of(const at::Tensor& x) const {
  const std::int64_t width = run_ == 0 ? x.size(1) : run_;
  const at::Tensor runs = x.view({x.size(0), -1, width});
  at::Tensor ranges = at::stack({runs.amin({0, 2}), runs.amax({0, 2})}).to(at::kDouble);
  if (settings_.observer != InputObserver::kMovingError) return ranges;  // a device is not waited for
  ranges = ranges.cpu();
  return ranges * shares_of(x, ranges);
}

void MovingRange::add(at::Tensor& figures, const StatisticInput& input, const RowRange&) const {
  const at::Tensor& x = input.values[0];
  const SampleRows& samples = input.samples;
  for (std::size_t i = 0; i + 1 < samples.offsets.size(); ++i) {
    const std::int64_t first = samples.offsets[i], count = samples.offsets[i + 1] - first;
    if (count == 0) continue;
    const at::Tensor ranges = ranges_of(x.narrow(0, first, count));
    const double weight = weight_of(settings_.averaging_constant, samples.places.at(i), samples.all);
    const at::Tensor wide = ranges.mul(weight).repeat_interleave(x.size(1) / ranges.size(1), 1);
    figures.narrow(0, 0, 2).add_(wide.to(figures.options()));
    figures.select(0, 2).add_(weight);
  }
}

at::Tensor MovingRange::range(const at::Tensor& figures) const {
  const at::Tensor sums = figures.cpu().to(at::kDouble);
  const at::Tensor weights = sums.select(0, 2), none = weights.eq(0);
  at::Tensor range = sums.narrow(0, 0, 2) / weights;
  range.select(0, 0).masked_fill_(none, std::numeric_limits<double>::infinity());
  range.select(0, 1).masked_fill_(none, -std::numeric_limits<double>::infinity());
  return range;
}

double MovingRange::flops(double tokens, std::int64_t features, const RowRange&) const {
  const bool searches = settings_.observer == InputObserver::kMovingError;
  return tokens * static_cast<double>(features) * (2 + (searches ? 48.0 * candidates_of(settings_) : 0));
}

std::uint64_t MovingRange::workspace_bytes(std::int64_t features, at::ScalarType, at::Device, int) const {
  const std::uint64_t ranges = 4 * sizeof(double) * static_cast<std::uint64_t>(features);
  if (settings_.observer != InputObserver::kMovingError) return ranges;
  return ranges + 4 * sizeof(float) * static_cast<std::uint64_t>(std::max<std::int64_t>(1 << 20, features));
}

void MovingRange::divide_channels(at::Tensor&, const at::Tensor&) const {
  throw InternalError("[compression.statistic] a range of whole samples does not follow the division of channels");
}

}  // namespace layerpress::compression
