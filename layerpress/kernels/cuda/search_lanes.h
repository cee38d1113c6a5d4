#pragma once

#include "layerpress/kernels/cuda/conversions.h"
#include "layerpress/kernels/cuda/scale_search.h"
#include "layerpress/kernels/numbers/element_levels.h"
#include "layerpress/kernels/numbers/scale_rounding.h"

// The search for a block's scale, as a warp computes it.
namespace layerpress::kernels::cuda {

struct SearchLane {
  float low, high;  ///< of its columns, and 0
  float error;
};

/// kernels::qparams_of, but for the sign of the scale, which all candidates of a block have in common.
LAYERPRESS_LANES Qparams candidate_of(const ScaleSearchTask& task, float low, float high, float shrink) {
  return range_parameters(task.stored, task.element, task.kind != RangeKind::kAsymmetric, low * shrink, high * shrink);
}

/// The error of the warp's columns with a candidate, whose scale gets this sign.
template <typename T, typename Warp, typename Levels>
LAYERPRESS_LANES float error_of(Warp& warp, const ScaleSearchTask& task, const T* x, const float* importance,
                                std::int64_t count, const Qparams& candidate, float sign, const Levels& levels) {
  const float inverse = sign / candidate.scale;
  warp.each([&](std::int32_t index, SearchLane& lane) {
    lane.error = 0;
    for (std::int64_t i = index; i < count; i += kWarp) {
      const float own = widen(x[i]), level = levels.level(own * inverse, candidate.zero_point);
      const float difference = fabsf(levels.value(level, candidate.zero_point) * (sign * candidate.scale) - own);
      const float error = task.exponent == 2.0f ? difference * difference : powf(difference, task.exponent);
      lane.error += importance == nullptr ? error : importance[i] * error;
    }
  });
  return warp.sum([](const SearchLane& lane) { return lane.error; });
}

/// Finds the scale of one row's block of columns.
template <typename T, typename Warp, typename Levels>
LAYERPRESS_LANES void search_block(Warp& warp, const ScaleSearchTask& task, std::int64_t row, std::int64_t block,
                                   const Levels& levels) {
  const std::int64_t begin = block * task.block_columns, left = task.columns - begin;
  const std::int64_t count = left < task.block_columns ? left : task.block_columns;
  const T* x = static_cast<const T*>(task.weight) + row * task.columns + begin;
  const float* importance = task.importance == nullptr ? nullptr : task.importance + begin;
  warp.each([&](std::int32_t index, SearchLane& lane) {
    lane.low = lane.high = 0;
    for (std::int64_t i = index; i < count; i += kWarp) {
      lane.low = fminf(lane.low, widen(x[i]));
      lane.high = fmaxf(lane.high, widen(x[i]));
    }
  });
  const float high = widened(task.stored, warp.largest([](const SearchLane& lane) { return lane.high; }), task.expand);
  const float low = widened(task.stored, -warp.largest([](const SearchLane& lane) { return -lane.low; }), task.expand);
  const float sign = sign_of_scale(task.kind == RangeKind::kSigned, low, high);
  Qparams best = candidate_of(task, low, high, task.shrink[0]);
  if (task.candidates > 1) {
    float least = error_of(warp, task, x, importance, count, best, sign, levels);
    for (std::int32_t c = 1; c < task.candidates; ++c) {
      const Qparams own = candidate_of(task, low, high, task.shrink[c]);
      const float error = error_of(warp, task, x, importance, count, own, sign, levels);
      if (!(error < least)) continue;
      least = error;
      best = own;
      warp.each([&](std::int32_t index, SearchLane&) {
        if (index == 0 && task.improving != nullptr) task.improving[c] = 1;  // other warps write the same
      });
    }
  }
  warp.each([&](std::int32_t index, SearchLane&) {
    if (index > 0) return;
    const std::int64_t at = row * task.blocks_across() + block;
    task.scales[at] = sign * best.scale;
    if (task.zero_points != nullptr) task.zero_points[at] = best.zero_point;
  });
}

}  // namespace layerpress::kernels::cuda
