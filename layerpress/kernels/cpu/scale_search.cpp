#include <cmath>

#include "layerpress/kernels/cpu/lanes.h"
#include "layerpress/kernels/cpu/quantization.h"

namespace layerpress::kernels::cpu::LAYERPRESS_ISA {
namespace {

struct SquaredError {
  float operator()(float difference) const { return difference * difference; }
};

struct PowerError {
  float exponent;
  float operator()(float difference) const {
    const float magnitude = std::fabs(difference) + 1e-30f;  // keeps the logarithm finite for 0
    return exponential2(exponent * logarithm2(magnitude));
  }
};

template <typename Levels, typename Error>
float error_of(const ScaleErrorTask& task, const Levels& levels, const Error& error, float scale, float zero_point) {
  const float inverse = 1.0f / scale;
  const float* weights = task.weights;
  const float* importance = task.importance;
  const std::int64_t count = task.count;
  float sum = 0;
  if (importance == nullptr) {
#pragma omp simd reduction(+ : sum)
    for (std::int64_t i = 0; i < count; ++i) {
      const float x = weights[i];
      sum += error(levels.value(levels.level(x * inverse, zero_point), zero_point) * scale - x);
    }
  } else {
#pragma omp simd reduction(+ : sum)
    for (std::int64_t i = 0; i < count; ++i) {
      const float x = weights[i];
      sum += importance[i] * error(levels.value(levels.level(x * inverse, zero_point), zero_point) * scale - x);
    }
  }
  return sum;
}

/// Calls body(column, scale, zero point) for each column. In a loop over floats and bytes, compilers take as many elements at once as
/// there are bytes in a register, and the rest one by one. NVFP4's groups of 16 columns therefore have a loop of their own.
template <typename Body>
void for_each_column(const RowScales& row, Body&& body) {
  constexpr std::int64_t kFew = 16;
  for (std::int64_t first = 0, g = 0; first < row.columns; first += row.group, ++g) {
    const float scale = row.scales[g], zero_point = row.zero_points == nullptr ? 0.0f : row.zero_points[g];
    const std::int64_t count = row.columns - first < row.group ? row.columns - first : row.group;
    if (count == kFew)
      for (std::int64_t i = 0; i < kFew; ++i) body(first + i, scale, zero_point);
    else
      for (std::int64_t i = 0; i < count; ++i) body(first + i, scale, zero_point);
  }
}

template <typename T>
void dequantize(const std::int8_t* codes, const RowScales& row, const ElementType& element, T* values) {
  with_levels<Operations>(element, [&](auto levels) {
    for_each_column(row, [&](std::int64_t i, float scale, float zero_point) {
      values[i] = narrow<T>(levels.value(levels.decode(codes[i]), zero_point) * scale);
    });
  });
}

}  // namespace

void minimum_maximum(const float* x, std::int64_t count, float* minimum, float* maximum) {
  float low = *minimum, high = *maximum;
#pragma omp simd reduction(min : low) reduction(max : high)
  for (std::int64_t i = 0; i < count; ++i) {
    low = x[i] < low ? x[i] : low;
    high = x[i] > high ? x[i] : high;
  }
  *minimum = low;
  *maximum = high;
}

void scale_errors(const ScaleErrorTask& task) {
  with_levels<Operations>(task.element, [&](auto levels) {
    for (std::int64_t c = 0; c < task.candidates; ++c) {
      const float zero_point = task.zero_points == nullptr ? 0.0f : task.zero_points[c];
      task.errors[c] += task.exponent == 2.0f
                            ? error_of(task, levels, SquaredError{}, task.scales[c], zero_point)
                            : error_of(task, levels, PowerError{task.exponent}, task.scales[c], zero_point);
    }
  });
}

void quantize(const float* x, const RowScales& row, const ElementType& element, std::int8_t* codes) {
  with_levels<Operations>(element, [&](auto levels) {
    for_each_column(row, [&](std::int64_t i, float scale, float zero_point) {
      codes[i] = levels.encode(levels.level(x[i] / scale, zero_point));
    });
  });
}

void dequantize_bf16(const std::int8_t* codes, const RowScales& row, const ElementType& element, Bits16* values) {
  dequantize(codes, row, element, values);
}

void dequantize_f32(const std::int8_t* codes, const RowScales& row, const ElementType& element, float* values) {
  dequantize(codes, row, element, values);
}

}  // namespace layerpress::kernels::cpu::LAYERPRESS_ISA
