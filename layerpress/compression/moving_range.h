#pragma once

#include <optional>
#include <string>

#include "layerpress/compression/statistic.h"
#include "layerpress/quant/static_inputs.h"

namespace layerpress::compression {

/// The moving average of the ranges of samples, in the order of the calibration set: m = (1 - c) m + c x for each sample after
/// the first. It is the sum of the ranges with weights that follow from a sample's place alone, so that parts of it merge by
/// addition. Figures [3, features], equal in all columns: the sums of the weighted minima, of the weighted maxima, and of the weights.
/// With an observer that searches, each sample's range is the shrunken one with the smallest error.
class MovingRange final : public Statistic {
 public:
  MovingRange(const quant::InputObserverSettings& settings, const quant::QuantizationArgs& inputs);

  /// The name of the statistic for these settings.
  static std::string name_of(const quant::InputObserverSettings& settings, const quant::QuantizationArgs& inputs);

  std::string_view name() const override { return name_; }
  std::int64_t rows(std::int64_t) const override { return 3; }
  Merge merge() const override { return Merge::kSum; }
  bool everywhere() const override { return true; }
  bool looks_at_samples() const override { return true; }

  void add(at::Tensor& figures, const StatisticInput& input, const RowRange& range) const override;
  double flops(double tokens, std::int64_t features, const RowRange& range) const override;
  std::uint64_t workspace_bytes(std::int64_t features, at::ScalarType dtype, int threads) const override;
  bool follows_division() const override { return false; }
  void divide_channels(at::Tensor& figures, const at::Tensor& scale) const override;

 private:
  /// The range of a sample [tokens, features].
  std::pair<double, double> range_of(const at::Tensor& x) const;

  quant::InputObserverSettings settings_;
  quant::QuantizationArgs inputs_;
  std::string name_;
};

}  // namespace layerpress::compression
