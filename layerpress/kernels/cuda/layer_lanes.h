#pragma once

#ifdef __CUDACC__
#include <cuda_fp16.h>
#endif

#include <cmath>

#include "layerpress/kernels/cuda/lanes.h"
#include "layerpress/kernels/cuda/layer_pieces.h"

namespace layerpress::kernels::cuda {

/// bfloat16 by its bits.
struct Bf16 {
  std::uint16_t bits;
};

LAYERPRESS_LANES float widen(Bf16 value) { return float_of(static_cast<std::uint32_t>(value.bits) << 16); }
LAYERPRESS_LANES float widen(float value) { return value; }
#ifdef __CUDACC__
LAYERPRESS_LANES float widen(__half value) { return __half2float(value); }
#endif

template <typename T>
LAYERPRESS_LANES T narrow(float value);
template <>
LAYERPRESS_LANES float narrow<float>(float value) {
  return value;
}
/// To nearest even; NaN stays NaN.
template <>
LAYERPRESS_LANES Bf16 narrow<Bf16>(float value) {
  const std::uint32_t bits = bits_of(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return {0x7FC0u};
  return {static_cast<std::uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16)};
}

#ifdef __CUDACC__
template <>
LAYERPRESS_LANES __half narrow<__half>(float value) {
  return __float2half_rn(value);
}
#endif

/// What a lane loads and stores at once.
template <typename T, std::int32_t kCount>
struct alignas(sizeof(T) * kCount) Run {
  T values[kCount];
};

struct NormLane {
  float squares;
};

/// One row; `size` is a multiple of kCount, and rows begin at multiples of a run's size.
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

/// silu(a) b, rounded after either.
template <typename T>
LAYERPRESS_LANES T gated(T a, T b) {
  const float x = widen(a);
  return narrow<T>(widen(narrow<T>(x / (1.0f + expf(-x)))) * widen(b));
}

/// Feature `feature` of a token, all heads counted.
template <typename T>
LAYERPRESS_LANES T rotated(const RotaryTask& task, std::int64_t token, std::int64_t feature) {
  const T* x = static_cast<const T*>(task.x) + token * task.heads * task.head_dim;
  const std::int64_t begin = feature / task.head_dim * task.head_dim + task.offset, place = feature - begin;
  if (place < 0 || place >= 2 * task.pairs) return x[feature];
  const std::int64_t pair = task.interleaved ? place / 2 : place % task.pairs;
  const bool is_first = task.interleaved ? place % 2 == 0 : place < task.pairs;
  const std::int64_t apart = task.interleaved ? 1 : task.pairs, angle = task.positions[token] * task.pairs + pair;
  const float other = widen(x[is_first ? feature + apart : feature - apart]) * task.sine[angle];
  const float own = widen(x[feature]) * task.cosine[angle];
  return narrow<T>(is_first ? own - other : own + other);
}

}  // namespace layerpress::kernels::cuda
