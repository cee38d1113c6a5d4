#pragma once

#include <utility>

#include "layerpress/compression/statistics/statistic.h"
#include "layerpress/kernels/layers/output_cross.h"

namespace layerpress::compression {

/// EᵀX [rows, features], where X is the input of a linear with `rows` rows that writes into the residual stream, and E is the
/// difference between the original model's stream and the compressed one's after this linear (kernels/layers/output_cross.h).
class OutputCrossStatistic final : public Statistic {
 public:
  static constexpr const char* kName = "output_cross";

  /// `stream`: before the linear writes; `weight`: the linear's; `shares`: of the differences.
  OutputCrossStatistic(graph::ValueId stream, std::string weight, std::int64_t rows,
                       const kernels::ResidualShares& shares)
      : stream_(stream), weight_(std::move(weight)), rows_(rows), shares_(shares) {}

  std::string_view name() const override { return kName; }
  const char* phase() const override { return "cross"; }
  std::vector<StatisticSource> sources(graph::ValueId value) const override {
    return {{value}, {value, true}, {stream_}, {stream_, true}};
  }
  std::string weight() const override { return weight_; }
  const kernels::ResidualShares& shares() const { return shares_; }
  std::int64_t rows(std::int64_t) const override { return rows_; }
  Merge merge() const override { return Merge::kSum; }

  void add(at::Tensor& figures, const StatisticInput& input, const RowRange&) const override {
    const std::vector<at::Tensor>& values = input.values;
    kernels::accumulate_output_cross(figures, {values[0], values[1], values[2], values[3]}, input.weight, shares_);
  }
  double flops(double tokens, std::int64_t features, const RowRange&) const override {
    return 4 * tokens * static_cast<double>(rows_ * features);
  }
  std::uint64_t workspace_bytes(std::int64_t features, at::ScalarType dtype, at::Device device,
                                int threads) const override {
    return kernels::output_cross_workspace_bytes(rows_, features, dtype, device, threads);
  }
  void divide_channels(at::Tensor& figures, const at::Tensor& scale) const override { figures.div_(scale); }

 private:
  graph::ValueId stream_;
  std::string weight_;
  std::int64_t rows_;
  kernels::ResidualShares shares_;
};

}  // namespace layerpress::compression
