#pragma once

#include <ATen/ops/abs.h>
#include <ATen/ops/sum.h>

#include "layerpress/compression/statistics/channel_sum.h"

namespace layerpress::compression {

/// The sum of absolute values of every channel [1, features]; the mean is this sum divided by the number of tokens.
class MeanAbsolute final : public ChannelSum {
 public:
  static constexpr const char* kName = "mean_absolute";

  std::string_view name() const override { return kName; }
  std::uint64_t workspace_bytes(std::int64_t features, at::ScalarType dtype, at::Device, int) const override {
    return static_cast<std::uint64_t>(features) * (kTokensAtOnce * c10::elementSize(dtype) + sizeof(float));
  }
  void divide_channels(at::Tensor& figures, const at::Tensor& scale) const override { figures.div_(scale); }

 private:
  at::Tensor sum_of(const at::Tensor& tokens) const override {
    return at::sum(at::abs(tokens), {0}, /*keepdim=*/true, at::kFloat);
  }
};

}  // namespace layerpress::compression
