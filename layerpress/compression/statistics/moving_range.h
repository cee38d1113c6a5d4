#pragma once

#include <string>

#include "layerpress/compression/statistics/range_statistic.h"
#include "layerpress/quant/rounding/static_inputs.h"

namespace layerpress::compression {

/// The moving average of the ranges of samples, in the order of the calibration set: m = (1 - c) m + c x for each sample after
/// the first. It is the sum of the ranges with weights that follow from a sample's place alone, so that parts of it merge by
/// addition. Figures [3, features], equal in all channels of a run: the sums of the weighted minima, of the weighted maxima, and
/// of the weights. With an observer that searches, each sample's range is the shrunken one with the smallest error.
class MovingRange final : public RangeStatistic {
 public:
  /// `run`: consecutive channels that have one range; 0: all.
  MovingRange(const quant::InputObserverSettings& settings, const quant::QuantizationArgs& inputs,
              std::int64_t run = 0);

  std::string_view name() const override { return name_; }
  std::int64_t rows(std::int64_t) const override { return 3; }
  Merge merge() const override { return Merge::kSum; }
  bool looks_at_samples() const override { return true; }

  void add(at::Tensor& figures, const StatisticInput& input, const RowRange& range) const override;
  double flops(double tokens, std::int64_t features, const RowRange& range) const override;
  std::uint64_t workspace_bytes(std::int64_t features, at::ScalarType dtype, at::Device device,
                                int threads) const override;
  bool follows_division() const override { return false; }
  void divide_channels(at::Tensor& figures, const at::Tensor& scale) const override;

  at::Tensor range(const at::Tensor& figures) const override;

 private:
  /// The ranges of a sample [tokens, features]: fp64 [2, runs].
  at::Tensor ranges_of(const at::Tensor& x) const;
  /// The shares of the ranges that the search leaves, fp64 [runs].
  at::Tensor shares_of(const at::Tensor& x, const at::Tensor& ranges) const;

  quant::InputObserverSettings settings_;
  quant::QuantizationArgs inputs_;
  std::int64_t run_ = 0;
  std::string name_;
};

}  // namespace layerpress::compression
