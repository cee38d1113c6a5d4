#pragma once

#include <algorithm>

#include "layerpress/kernels/cuda/lanes.h"

namespace layerpress::kernels::test {

/// The lanes of a warp, one after the other: what kernels are written against, on the host.
template <typename Lane>
struct HostWarp {
  Lane lanes[cuda::kWarp];

  template <typename Function>
  void each(Function&& function) {
    for (std::int32_t index = 0; index < cuda::kWarp; ++index) function(index, lanes[index]);
  }
  template <typename Function>
  float of(std::int32_t own, Function&& function) {
    return function(lanes[own]);
  }
  template <typename Function>
  float sum(Function&& function) {
    float result = 0;
    for (Lane& lane : lanes) result += function(lane);
    return result;
  }
  template <typename Function>
  float largest(Function&& function) {
    float result = function(lanes[0]);
    for (Lane& lane : lanes) result = std::max(result, function(lane));
    return result;
  }
};

}  // namespace layerpress::kernels::test
