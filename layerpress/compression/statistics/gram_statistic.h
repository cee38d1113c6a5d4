#pragma once

#include "layerpress/compression/statistics/statistic.h"
#include "layerpress/kernels/products/gram.h"

namespace layerpress::compression {

/// XᵀX [features, features], of which the upper triangle is defined.
class GramStatistic final : public Statistic {
 public:
  static constexpr const char* kName = "gram";

  std::string_view name() const override { return kName; }
  const char* phase() const override { return "gram"; }
  std::int64_t rows(std::int64_t features) const override { return features; }
  Merge merge() const override { return Merge::kSum; }
  Travel travel() const override { return Travel::kTriangle; }
  bool adds_by_rows() const override { return true; }

  void add(at::Tensor& figures, const StatisticInput& input, const RowRange& range) const override {
    kernels::accumulate_gram_rows(figures, input.values[0], range.first, range.last);
  }
  double flops(double tokens, std::int64_t features, const RowRange& range) const override {
    return 2 * tokens * static_cast<double>(element_count(*this, features, range));
  }
  std::uint64_t workspace_bytes(std::int64_t features, at::ScalarType dtype, at::Device device, int) const override {
    return kernels::gram_workspace_bytes(features, dtype, device);
  }
  void divide_channels(at::Tensor& figures, const at::Tensor& scale) const override {
    figures.div_(scale).div_(scale.unsqueeze(1));
  }
};

}  // namespace layerpress::compression
