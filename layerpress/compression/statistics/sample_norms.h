#pragma once

#include <ATen/ops/zeros_like.h>

#include <cstdint>

#include "layerpress/compression/statistics/square_sum.h"

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

  void add(at::Tensor& figures, const StatisticInput& input, const RowRange& range) const override {
    const std::vector<std::int64_t>& offsets = input.samples.offsets;
    for (std::size_t i = 0; i + 1 < offsets.size(); ++i) {
      at::Tensor squares = at::zeros_like(figures);
      squares_.add(squares, {.values = {input.values[0].slice(0, offsets[i], offsets[i + 1])}}, range);
      figures.add_(squares.sqrt_());
    }
  }
  double flops(double tokens, std::int64_t features, const RowRange& range) const override {
    return squares_.flops(tokens, features, range);
  }
  std::uint64_t workspace_bytes(std::int64_t features, at::ScalarType dtype, at::Device device,
                                int threads) const override {
    return squares_.workspace_bytes(features, dtype, device, threads) +
           static_cast<std::uint64_t>(features) * sizeof(float);
  }
  void divide_channels(at::Tensor& figures, const at::Tensor& scale) const override { figures.div_(scale); }

 private:
  SquareSum squares_;
};

}  // namespace layerpress::compression
