#pragma once

#include <utility>

#include "layerpress/compression/statistics/statistic.h"
#include "layerpress/kernels/layers/output_cross.h"

namespace layerpress::compression {

/// EᵀX [rows, features], where X is the input of a linear with `rows` rows that writes into the residual stream, and E is what the
/// original model's linear gives, and the difference between both streams before (kernels/layers/output_cross.h).
class OutputCrossStatistic final : public Statistic {
 public:
  static constexpr const char* kName = "output_cross";

  /// `strength` and `residual`: the shares of what the linear writes, and of the streams' difference.
  OutputCrossStatistic(graph::ResidualWrite write, double strength, double residual)
      : write_(std::move(write)), shares_{strength, residual / write_.factor} {}

  std::string_view name() const override { return kName; }
  const char* phase() const override { return "cross"; }
  std::vector<StatisticSource> sources(graph::ValueId value) const override {
    return {{value}, {write_.stream}, {write_.stream, true}, {write_.output, true}};
  }
  std::string parameter() const override { return write_.bias; }
  const kernels::ResidualShares& shares() const { return shares_; }
  std::int64_t rows(std::int64_t) const override { return write_.rows; }
  Merge merge() const override { return Merge::kSum; }

  void add(at::Tensor& figures, const StatisticInput& input, const RowRange&) const override {
    const std::vector<at::Tensor>& values = input.values;
    kernels::accumulate_output_cross(figures, {values[0], values[1], values[2], values[3]}, input.parameter, shares_);
  }
  double flops(double tokens, std::int64_t features, const RowRange&) const override {
    return 2 * tokens * static_cast<double>(write_.rows * features);
  }
  std::uint64_t workspace_bytes(std::int64_t features, at::ScalarType dtype, at::Device device, int) const override {
    return kernels::output_cross_workspace_bytes(write_.rows, features, dtype, device);
  }
  void divide_channels(at::Tensor& figures, const at::Tensor& scale) const override { figures.div_(scale); }

 private:
  graph::ResidualWrite write_;
  kernels::ResidualShares shares_;
};

}  // namespace layerpress::compression
