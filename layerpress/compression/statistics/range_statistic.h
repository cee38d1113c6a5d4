#pragma once

#include <memory>

#include "layerpress/compression/statistics/statistic.h"

namespace layerpress::compression {

/// A statistic from which the range of each of a value's channels follows. It is small, and all ranks need it.
class RangeStatistic : public Statistic {
 public:
  bool everywhere() const override { return true; }
  /// Engines round the values of every token, whichever of them counted in errors.
  bool takes_all_tokens() const override { return true; }

  /// fp64 [2, features] on the CPU: the least and the greatest elements. Without tokens, infinity and minus infinity.
  virtual at::Tensor range(const at::Tensor& figures) const = 0;
};

using RangeStatisticPtr = std::shared_ptr<const RangeStatistic>;

}  // namespace layerpress::compression
