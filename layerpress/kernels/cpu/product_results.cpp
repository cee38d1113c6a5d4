// Converts a tile's sums to results: rounded to the stored type, with a bias or gated.
#include "layerpress/kernels/cpu/lanes.h"
#include "layerpress/kernels/cpu/product.h"

namespace layerpress::kernels::cpu::LAYERPRESS_ISA {
namespace {

template <typename T>
void round_sums(const ProductResult& result) {
  float added[kProductPanel] = {};
  const T* bias = static_cast<const T*>(result.bias);
  for (std::int64_t c = 0; bias != nullptr && c < result.columns; ++c) added[c] = widen(bias[c]);
  const float* sums = result.sums;
  T* y = static_cast<T*>(result.y);
  for (std::int64_t r = 0; r < result.rows; ++r, sums += kProductPanel, y += result.stride) {
    T rounded[kProductPanel];
    for (std::int64_t c = 0; c < kProductPanel; ++c) rounded[c] = narrow<T>(sums[c] + added[c]);
    std::memcpy(y, rounded, static_cast<std::size_t>(result.columns) * sizeof(T));
  }
}

/// The first half of a row has the gates, the second half their factors. The same as silu_multiply() of
/// rounded sums, which stay in registers here.
template <typename T>
void gate_sums(const ProductResult& result) {
  constexpr std::int64_t kTogether = 8;  // rows: enough values for whole registers, one after the other
  const float* sums = result.sums;
  T* y = static_cast<T*>(result.y);
  for (std::int64_t first = 0; first < result.rows; first += kTogether) {
    const std::int64_t count = result.rows - first < kTogether ? result.rows - first : kTogether;
    alignas(64) float gate[kTogether * kProductHalf], up[kTogether * kProductHalf];
    alignas(64) T gated[kTogether * kProductHalf];
    for (std::int64_t r = 0; r < count; ++r, sums += kProductPanel) {
      std::memcpy(gate + r * kProductHalf, sums, kProductHalf * sizeof(float));
      std::memcpy(up + r * kProductHalf, sums + kProductHalf, kProductHalf * sizeof(float));
    }
    for (std::int64_t i = 0; i < count * kProductHalf; ++i)
      gated[i] = silu_multiply(narrow<T>(gate[i]), narrow<T>(up[i]));
    for (std::int64_t r = 0; r < count; ++r, y += result.stride)
      std::memcpy(y, gated + r * kProductHalf, static_cast<std::size_t>(result.columns) * sizeof(T));
  }
}

}  // namespace

void product_round(const ProductResult& result) {
  with_type(result.type, [&](auto type) { round_sums<decltype(type)>(result); });
}

void product_gate(const ProductResult& result) {
  with_type(result.type, [&](auto type) { gate_sums<decltype(type)>(result); });
}

}  // namespace layerpress::kernels::cpu::LAYERPRESS_ISA
