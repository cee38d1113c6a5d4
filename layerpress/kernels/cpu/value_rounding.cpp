#include "layerpress/kernels/cpu/lanes.h"
#include "layerpress/kernels/cpu/quantization.h"

namespace layerpress::kernels::cpu::LAYERPRESS_ISA {
namespace {

/// On the bits, because these files are compiled as if floats were never NaN.
bool is_nan(float x) { return (bit_cast<std::uint32_t>(x) & 0x7FFFFFFFu) > 0x7F800000u; }

/// A length that the compiler knows, for the short runs of the formats with groups of 16 and 32.
template <std::int64_t kLength>
struct KnownLength {
  constexpr operator std::int64_t() const { return kLength; }
};

template <typename Function>
void with_length(std::int64_t run, Function&& function) {
  if (run == 16)
    function(KnownLength<16>{});
  else if (run == 32)
    function(KnownLength<32>{});
  else
    function(run);
}

template <typename T, typename Levels, typename Length>
void round_runs(const RoundingTask& task, const Levels& levels, Length length) {
  const float* x = task.x;
  auto* y = static_cast<T*>(task.y);
  for (std::int64_t r = 0; r < task.runs; ++r, x += length, y += length) {
    const float scale = task.scales[r], zero_point = task.zero_points == nullptr ? 0.0f : task.zero_points[r];
#pragma omp simd
    for (std::int64_t i = 0; i < length; ++i) {
      const float value = levels.value(levels.level(x[i] / scale, zero_point), zero_point) * scale;
      y[i] = narrow<T>(is_nan(x[i]) ? x[i] : value);
    }
  }
}

}  // namespace

void run_ranges(const float* x, std::int64_t runs, std::int64_t run, float* minima, float* maxima) {
  with_length(run, [&](auto length) {
    for (std::int64_t r = 0; r < runs; ++r, x += length) {
      float low = 0, high = 0;
#pragma omp simd reduction(min : low) reduction(max : high)
      for (std::int64_t i = 0; i < length; ++i) {
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
      }
      minima[r] = low;
      maxima[r] = high;
    }
  });
}

void round_values(const RoundingTask& task) {
  with_type(task.type, [&](auto value) {
    with_levels<Operations>(task.element, [&](const auto& levels) {
      with_length(task.run, [&](auto length) { round_runs<decltype(value)>(task, levels, length); });
    });
  });
}

}  // namespace layerpress::kernels::cpu::LAYERPRESS_ISA
