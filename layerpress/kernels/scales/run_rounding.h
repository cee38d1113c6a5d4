#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "layerpress/kernels/cpu/table.h"
#include "layerpress/kernels/scales/scale_search.h"

namespace layerpress::kernels {

/// Rounds consecutive runs of values to few bits and back; used by one thread. Each run has a scale of its own: compressed-tensors' for
/// its range.
class RunRounding {
 public:
  /// At most `most` runs at once.
  RunRounding(const RangeRule& rule, const ScaleFormat& scales, std::size_t most)
      : rule_(rule), stored_(scales), minima_(most), maxima_(most), scales_(most), zero_points_(most) {}

  /// x: fp32 [runs, run]. y: the same in `type`.
  void round(const float* x, std::int64_t runs, std::int64_t run, cpu::ValueType type, void* y) {
    if (runs == 0) return;
    cpu::table().run_ranges(x, runs, run, minima_.data(), maxima_.data());
    for (std::size_t r = 0; r < static_cast<std::size_t>(runs); ++r) {
      const Qparams found = qparams_of(Range{minima_[r], maxima_[r]}, 1, rule_, stored_);
      scales_[r] = found.scale;
      zero_points_[r] = found.zero_point;
    }
    cpu::table().round_values({.x = x,
                               .runs = runs,
                               .run = run,
                               .scales = scales_.data(),
                               .zero_points = rule_.symmetric ? nullptr : zero_points_.data(),
                               .element = rule_.element,
                               .type = type,
                               .y = y});
  }

 private:
  RangeRule rule_;
  ScaleFormat stored_;
  std::vector<float> minima_, maxima_, scales_, zero_points_;
};

}  // namespace layerpress::kernels
