#pragma once

#include <ATen/ops/square.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cstdint>

#include "layerpress/compression/statistic.h"

namespace layerpress::compression {

/// The sum over samples of the 2-norm of every channel in a sample [1, features].
class SampleNorms final : public Statistic {
 public:
  static constexpr const char* kName = "sample_norms";

  std::string_view name() const override { return kName; }
  std::int64_t rows(std::int64_t) const override { return 1; }
  Merge merge() const override { return Merge::kSum; }
  bool everywhere() const override { return true; }
  bool looks_at_samples() const override { return true; }

  void add(at::Tensor& figures, const StatisticInput& input, const RowRange&) const override {
    const std::vector<std::int64_t>& offsets = input.samples.offsets;
    for (std::size_t i = 0; i + 1 < offsets.size(); ++i) {
      at::Tensor squares = at::zeros_like(figures);
      for (std::int64_t first = offsets[i]; first < offsets[i + 1]; first += kTokensAtOnce) {
        const std::int64_t count = std::min(kTokensAtOnce, offsets[i + 1] - first);
        squares.add_(at::sum(at::square(input.values[0].narrow(0, first, count).to(at::kFloat)), {0}, true));
      }
      figures.add_(squares.sqrt_());
    }
  }
  double flops(double tokens, std::int64_t features, const RowRange&) const override {
    return 2 * tokens * static_cast<double>(features);
  }
  std::uint64_t workspace_bytes(std::int64_t features, at::ScalarType, at::Device, int) const override {
    return static_cast<std::uint64_t>(features) * (2 * kTokensAtOnce + 2) * sizeof(float);
  }
  void divide_channels(at::Tensor& figures, const at::Tensor& scale) const override { figures.div_(scale); }

 private:
  static constexpr std::int64_t kTokensAtOnce = 256;
};

}  // namespace layerpress::compression
