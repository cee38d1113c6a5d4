#pragma once

#include <ATen/ops/amax.h>
#include <ATen/ops/amin.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/neg.h>

#include "layerpress/compression/statistic.h"

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
    const at::Tensor largest = at::maximum(at::neg(at::amin(x, 0)), at::amax(x, 0));
    at::maximum_out(figures, figures, largest.to(at::kFloat).unsqueeze(0));
  }
  double flops(double tokens, std::int64_t features, const RowRange&) const override {
    return 2 * tokens * static_cast<double>(features);
  }
  std::uint64_t workspace_bytes(std::int64_t features, at::ScalarType, int) const override {
    return 5 * sizeof(float) * static_cast<std::uint64_t>(features);
  }
  void divide_channels(at::Tensor& figures, const at::Tensor& scale) const override { figures.div_(scale); }
};

}  // namespace layerpress::compression
