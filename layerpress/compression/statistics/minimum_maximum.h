#pragma once

#include <ATen/ops/maximum.h>

#include "layerpress/compression/statistics/range_statistic.h"
#include "layerpress/kernels/scales/channel_ranges.h"

namespace layerpress::compression {

/// The smallest and the largest element of every channel. The first row holds -min, so that both rows merge by maximum. Without
/// tokens both are minus infinity.
class MinimumMaximum final : public RangeStatistic {
 public:
  static constexpr const char* kName = "minimum_maximum";

  std::string_view name() const override { return kName; }
  std::int64_t rows(std::int64_t) const override { return 2; }
  Merge merge() const override { return Merge::kMax; }

  void add(at::Tensor& figures, const StatisticInput& input, const RowRange&) const override {
    const at::Tensor& x = input.values[0];
    if (x.size(0) == 0) return;
    at::Tensor ranges = kernels::channel_ranges(x);
    ranges.select(0, 0).neg_();
    at::maximum_out(figures, figures, ranges);
  }
  double flops(double tokens, std::int64_t features, const RowRange&) const override {
    return 2 * tokens * static_cast<double>(features);
  }
  std::uint64_t workspace_bytes(std::int64_t features, at::ScalarType, at::Device, int) const override {
    return kernels::channel_ranges_workspace_bytes(features) + 2 * sizeof(float) * static_cast<std::uint64_t>(features);
  }
  void divide_channels(at::Tensor& figures, const at::Tensor& scale) const override { figures.div_(scale); }

  at::Tensor range(const at::Tensor& figures) const override {
    at::Tensor range = figures.cpu().to(at::kDouble, /*non_blocking=*/false, /*copy=*/true);
    range.select(0, 0).neg_();
    return range;
  }
};

}  // namespace layerpress::compression
