#include "layerpress/kernels/cpu/lanes.h"
#include "layerpress/kernels/cpu/quantization.h"

namespace layerpress::kernels::cpu::LAYERPRESS_ISA {
namespace {

template <typename X, typename Y>
void scale_elements(const X* x, const float* factors, std::int64_t count, Y* y) {
  for (std::int64_t i = 0; i < count; ++i) y[i] = narrow<Y>(widen(narrow<X>(widen(x[i]) * factors[i])));
}

}  // namespace

void scale_columns(const void* x, ValueType x_type, const float* factors, std::int64_t count, void* y,
                   ValueType y_type) {
  with_type(x_type, [&](auto sample) {
    using X = decltype(sample);
    if (y_type == ValueType::kFloat)
      scale_elements(static_cast<const X*>(x), factors, count, static_cast<float*>(y));
    else
      scale_elements(static_cast<const X*>(x), factors, count, static_cast<X*>(y));
  });
}

}  // namespace layerpress::kernels::cpu::LAYERPRESS_ISA
