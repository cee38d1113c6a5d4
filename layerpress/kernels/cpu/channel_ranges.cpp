#include "layerpress/kernels/cpu/lanes.h"
#include "layerpress/kernels/cpu/quantization.h"

namespace layerpress::kernels::cpu::LAYERPRESS_ISA {
namespace {

constexpr std::int64_t kRows = 4;  // at once, so that ranges are loaded and stored once for all of them

std::uint32_t larger(std::uint32_t a, std::uint32_t b) { return a > b ? a : b; }

/// Extends the ranges by kRows rows. Returns the largest magnitude, as bits.
template <typename T>
std::uint32_t extend(const T* x, std::int64_t stride, std::int64_t columns, float* minima, float* maxima) {
  std::uint32_t largest = 0;
#pragma omp simd reduction(max : largest)
  for (std::int64_t i = 0; i < columns; ++i) {
    float low = minima[i], high = maxima[i];
    for (std::int64_t row = 0; row < kRows; ++row) {
      const float value = widen(x[row * stride + i]);
      low = value < low ? value : low;
      high = value > high ? value : high;
      largest = larger(largest, bit_cast<std::uint32_t>(value) & 0x7FFFFFFFu);
    }
    minima[i] = low;
    maxima[i] = high;
  }
  return largest;
}

template <typename T>
std::uint32_t extend_all(const StoredRows& rows, std::int64_t columns, float* minima, float* maxima) {
  const auto* x = static_cast<const T*>(rows.values);
  std::uint32_t largest = 0;
  std::int64_t row = 0;
  for (; row + kRows <= rows.count; row += kRows)
    largest = larger(largest, extend(x + row * rows.stride, rows.stride, columns, minima, maxima));
  for (; row < rows.count; ++row)  // the same row several times
    largest = larger(largest, extend(x + row * rows.stride, 0, columns, minima, maxima));
  return largest;
}

}  // namespace

bool channel_ranges(const StoredRows& rows, std::int64_t columns, float* minima, float* maxima) {
  constexpr std::uint32_t kInfinity = 0x7F800000u;
  bool has_nan = false;
  with_type(rows.type,
            [&](auto value) { has_nan = extend_all<decltype(value)>(rows, columns, minima, maxima) > kInfinity; });
  return !has_nan;
}

}  // namespace layerpress::kernels::cpu::LAYERPRESS_ISA
