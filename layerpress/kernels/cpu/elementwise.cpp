#include "layerpress/kernels/cpu/elementwise.h"

#include <cmath>

#include "layerpress/kernels/cpu/lanes.h"

namespace layerpress::kernels::cpu::LAYERPRESS_ISA {
namespace {

/// The normalized value is rounded to the dtype before the weight is applied, as transformers does.
template <typename T>
void rms_norm(const T* x, const T* weight, T* y, std::int64_t rows, std::int64_t size, float eps) {
  for (std::int64_t row = 0; row < rows; ++row, x += size, y += size) {
    float squares = 0;
#pragma omp simd reduction(+ : squares)
    for (std::int64_t i = 0; i < size; ++i) squares += widen(x[i]) * widen(x[i]);
    const float factor = 1.0f / std::sqrt(squares / static_cast<float>(size) + eps);
    for (std::int64_t i = 0; i < size; ++i) y[i] = narrow<T>(widen(narrow<T>(widen(x[i]) * factor)) * widen(weight[i]));
  }
}

template <typename T>
void multiply_silu(const T* a, const T* b, T* y, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) y[i] = silu_multiply(a[i], b[i]);
}

template <typename T>
void rotary(const T* x, const float* cosine, const float* sine, T* y, std::int64_t heads, std::int64_t head_dim,
            std::int64_t pairs) {
  for (std::int64_t head = 0; head < heads; ++head, x += head_dim, y += head_dim) {
    for (std::int64_t i = 0; i < pairs; ++i) {
      const float first = widen(x[i]), second = widen(x[i + pairs]);
      y[i] = narrow<T>(first * cosine[i] - second * sine[i]);
      y[i + pairs] = narrow<T>(second * cosine[i] + first * sine[i]);
    }
    for (std::int64_t i = 2 * pairs; i < head_dim; ++i) y[i] = x[i];
  }
}

template <typename T>
void squared_difference(const T* a, const T* b, std::int64_t count, double* difference, double* square) {
  constexpr std::int64_t kBlock = 1024;  // Longer sums in fp32 lose digits where there are few lanes.
  *difference = *square = 0;
  for (std::int64_t first = 0; first < count; first += kBlock) {
    const std::int64_t last = first + kBlock < count ? first + kBlock : count;
    float differences = 0, squares = 0;
#pragma omp simd reduction(+ : differences, squares)
    for (std::int64_t i = first; i < last; ++i) {
      const float d = widen(a[i]) - widen(b[i]);
      differences += d * d;
      squares += widen(a[i]) * widen(a[i]);
    }
    *difference += static_cast<double>(differences);
    *square += static_cast<double>(squares);
  }
}

template <typename T>
constexpr Elementwise<T> kElementwise{.rms_norm = rms_norm<T>,
                                      .silu_multiply = multiply_silu<T>,
                                      .rotary = rotary<T>,
                                      .squared_difference = squared_difference<T>};

}  // namespace

const Elementwise<Bits16> elementwise_bf16 = kElementwise<Bits16>;
const Elementwise<float> elementwise_f32 = kElementwise<float>;

void add_scaled_bf16(const Bits16* x, float factor, Bits16* y, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) y[i] = narrow_bf16(widen(y[i]) + widen(narrow_bf16(widen(x[i]) * factor)));
}
void widen_bf16(const Bits16* x, float* y, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) y[i] = widen(x[i]);
}

}  // namespace layerpress::kernels::cpu::LAYERPRESS_ISA
