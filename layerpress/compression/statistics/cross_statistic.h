#pragma once

#include "layerpress/compression/statistics/statistic.h"
#include "layerpress/kernels/products/gram.h"

namespace layerpress::compression {

/// (X̃ - X)ᵀX [features, features] where X̃ is the original model's value in the place of X.
class CrossStatistic final : public Statistic {
 public:
  static constexpr const char* kName = "cross";

  std::string_view name() const override { return kName; }
  const char* phase() const override { return "cross"; }
  std::vector<StatisticSource> sources(graph::ValueId value) const override { return {{value}, {value, true}}; }
  std::int64_t rows(std::int64_t features) const override { return features; }
  Merge merge() const override { return Merge::kSum; }
  bool adds_by_rows() const override { return true; }

  void add(at::Tensor& figures, const StatisticInput& input, const RowRange& range) const override {
    kernels::accumulate_cross_gram_rows(figures, input.values[1], input.values[0], range.first, range.last);
  }
  double flops(double tokens, std::int64_t features, const RowRange& range) const override {
    return 2 * tokens * static_cast<double>(element_count(*this, features, range));
  }
  std::uint64_t workspace_bytes(std::int64_t features, at::ScalarType dtype, at::Device device, int) const override {
    return kernels::cross_gram_workspace_bytes(features, dtype, device);
  }
  void divide_channels(at::Tensor& figures, const at::Tensor& scale) const override {
    figures.div_(scale).div_(scale.unsqueeze(1));
  }
};

}  // namespace layerpress::compression
