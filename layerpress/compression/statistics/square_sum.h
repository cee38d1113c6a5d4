#pragma once

#include <ATen/ops/square.h>
#include <ATen/ops/sum.h>

#include "layerpress/compression/statistics/channel_sum.h"

namespace layerpress::compression {

/// The sum of squares of every channel [1, features]: the diagonal of the Gram matrix, at its diagonal's cost.
class SquareSum final : public ChannelSum {
 public:
  static constexpr const char* kName = "square_sum";

  std::string_view name() const override { return kName; }
  std::uint64_t workspace_bytes(std::int64_t features, at::ScalarType, at::Device, int) const override {
    return static_cast<std::uint64_t>(features) * (2 * kTokensAtOnce + 1) * sizeof(float);
  }
  void divide_channels(at::Tensor& figures, const at::Tensor& scale) const override { figures.div_(scale).div_(scale); }

 private:
  at::Tensor sum_of(const at::Tensor& tokens) const override {
    return at::sum(at::square(tokens.to(at::kFloat)), {0}, /*keepdim=*/true);
  }
};

}  // namespace layerpress::compression
