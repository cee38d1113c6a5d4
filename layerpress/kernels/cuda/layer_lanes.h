#pragma once

#include <cmath>

#include "layerpress/kernels/cuda/conversions.h"
#include "layerpress/kernels/cuda/layer_pieces.h"

namespace layerpress::kernels::cuda {

/// The elements that a lane loads and stores at once.
template <typename T, std::int32_t kCount>
struct alignas(sizeof(T) * kCount) Run {
  T values[kCount];
};

struct NormLane {
  float squares;
};

/// One row. `size` is a multiple of kCount, and rows are aligned to kCount elements.
template <std::int32_t kCount, typename Warp, typename T, typename W>
LAYERPRESS_LANES void norm_row(Warp& warp, const NormTask& task, const T* x, const W* weight, T* y) {
  const auto runs = static_cast<std::int32_t>(task.size / kCount);
  const auto* from = reinterpret_cast<const Run<T, kCount>*>(x);
  auto* to = reinterpret_cast<Run<T, kCount>*>(y);
  warp.each([&](std::int32_t index, NormLane& lane) {
    lane.squares = 0;
    for (std::int32_t r = index; r < runs; r += kWarp) {
      const Run<T, kCount> run = from[r];
      LAYERPRESS_UNROLL
      for (std::int32_t i = 0; i < kCount; ++i) lane.squares += widen(run.values[i]) * widen(run.values[i]);
    }
  });
  const float squares = warp.sum([](const NormLane& lane) { return lane.squares; });
  const float factor = 1.0f / sqrtf(squares / static_cast<float>(task.size) + task.epsilon);
  warp.each([&](std::int32_t index, NormLane&) {
    for (std::int32_t r = index; r < runs; r += kWarp) {
      Run<T, kCount> run = from[r];
      LAYERPRESS_UNROLL
      for (std::int32_t i = 0; i < kCount; ++i) {
        const float normalized = widen(run.values[i]) * factor, by = widen(weight[r * kCount + i]);
        run.values[i] = task.rounded_once ? narrow<T>(normalized * (by + task.offset))
                                          : narrow<T>(widen(narrow<T>(normalized)) * by);
      }
      to[r] = run;
    }
  });
}

/// silu(a) b, rounded after each of the two operations.
template <typename T>
LAYERPRESS_LANES T gated(T a, T b) {
  const float x = widen(a);
  return narrow<T>(widen(narrow<T>(x / (1.0f + expf(-x)))) * widen(b));
}

/// Feature `feature` of a token, counted over all heads.
template <typename T>
LAYERPRESS_LANES T rotated(const RotaryTask& task, std::int64_t token, std::int32_t feature) {
  const T* x = static_cast<const T*>(task.x) + token * task.heads * task.head_dim;
  // In 32 bits: a GPU divides 64 bits in dozens of instructions.
  const auto head_dim = static_cast<std::int32_t>(task.head_dim), pairs = static_cast<std::int32_t>(task.pairs);
  const std::int32_t begin = feature / head_dim * head_dim + static_cast<std::int32_t>(task.offset),
                     place = feature - begin;
  if (place < 0 || place >= 2 * pairs) return x[feature];
  const bool is_first = task.interleaved ? place % 2 == 0 : place < pairs;
  const std::int32_t pair = task.interleaved ? place / 2 : is_first ? place : place - pairs;
  const std::int32_t apart = task.interleaved ? 1 : pairs;
  const std::int64_t angle = task.positions[token] * pairs + pair;
  const float other = widen(x[is_first ? feature + apart : feature - apart]) * task.sine[angle];
  const float own = widen(x[feature]) * task.cosine[angle];
  return narrow<T>(is_first ? own - other : own + other);
}

}  // namespace layerpress::kernels::cuda
