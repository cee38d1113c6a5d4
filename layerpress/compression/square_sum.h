#pragma once

#include <ATen/ops/square.h>
#include <ATen/ops/sum.h>

#include <algorithm>

#include "layerpress/compression/statistic.h"

namespace layerpress::compression {

/// The sum of squares of every channel [1, features]: the diagonal of the Gram matrix, at its diagonal's cost.
class SquareSum final : public Statistic {
 public:
  static constexpr const char* kName = "square_sum";

  std::string_view name() const override { return kName; }
  std::int64_t rows(std::int64_t) const override { return 1; }
  Merge merge() const override { return Merge::kSum; }
  bool everywhere() const override { return true; }

  void add(at::Tensor& figures, const StatisticInput& input, const RowRange&) const override {
    const at::Tensor& x = input.values[0];
    for (std::int64_t first = 0; first < x.size(0); first += kTokensAtOnce) {
      const at::Tensor some = x.narrow(0, first, std::min(kTokensAtOnce, x.size(0) - first));
      figures.add_(at::sum(at::square(some.to(at::kFloat)), {0}, /*keepdim=*/true));
    }
  }
  double flops(double tokens, std::int64_t features, const RowRange&) const override {
    return 2 * tokens * static_cast<double>(features);
  }
  std::uint64_t workspace_bytes(std::int64_t features, at::ScalarType, at::Device, int) const override {
    return static_cast<std::uint64_t>(features) * (2 * kTokensAtOnce + 1) * sizeof(float);
  }
  void divide_channels(at::Tensor& figures, const at::Tensor& scale) const override { figures.div_(scale).div_(scale); }

 private:
  static constexpr std::int64_t kTokensAtOnce = 256;
};

}  // namespace layerpress::compression
