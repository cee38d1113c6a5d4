#pragma once

#include <ATen/ops/maximum.h>
#include <ATen/ops/neg.h>

#include "layerpress/compression/statistic.h"
#include "layerpress/kernels/channel_ranges.h"

namespace layerpress::compression {

/// The largest absolute value of every channel [1, features]; minus infinity without tokens.
class AbsoluteMaximum final : public Statistic {
 public:
  static constexpr const char* kName = "absolute_maximum";

  std::string_view name() const override { return kName; }
  std::int64_t rows(std::int64_t) const override { return 1; }
  Merge merge() const override { return Merge::kMax; }
  bool everywhere() const override { return true; }

  void add(at::Tensor& figures, const StatisticInput& input, const RowRange&) const override {
    const at::Tensor& x = input.values[0];
    if (x.size(0) == 0) return;
    const at::Tensor ranges = kernels::channel_ranges(x);
    at::maximum_out(figures, figures, at::maximum(at::neg(ranges[0]), ranges[1]).unsqueeze(0));
  }
  double flops(double tokens, std::int64_t features, const RowRange&) const override {
    return 2 * tokens * static_cast<double>(features);
  }
  std::uint64_t workspace_bytes(std::int64_t features, at::ScalarType, at::Device, int) const override {
    return kernels::channel_ranges_workspace_bytes(features) + 2 * sizeof(float) * static_cast<std::uint64_t>(features);
  }
  void divide_channels(at::Tensor& figures, const at::Tensor& scale) const override { figures.div_(scale); }
};

}  // namespace layerpress::compression
