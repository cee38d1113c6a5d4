#pragma once

#include <algorithm>

#include "layerpress/compression/statistics/statistic.h"

namespace layerpress::compression {

/// A sum over tokens for every channel [1, features], some tokens at a time.
class ChannelSum : public Statistic {
 public:
  std::int64_t rows(std::int64_t) const final { return 1; }
  Merge merge() const final { return Merge::kSum; }
  bool everywhere() const final { return true; }

  void add(at::Tensor& figures, const StatisticInput& input, const RowRange&) const final {
    const at::Tensor& x = input.values[0];
    for (std::int64_t first = 0; first < x.size(0); first += kTokensAtOnce)
      figures.add_(sum_of(x.narrow(0, first, std::min(kTokensAtOnce, x.size(0) - first))));
  }
  double flops(double tokens, std::int64_t features, const RowRange&) const final {
    return 2 * tokens * static_cast<double>(features);
  }

 protected:
  static constexpr std::int64_t kTokensAtOnce = 256;

  /// fp32 [1, features] of tokens [at most kTokensAtOnce, features].
  virtual at::Tensor sum_of(const at::Tensor& tokens) const = 0;
};

}  // namespace layerpress::compression
