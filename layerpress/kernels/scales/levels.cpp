#include "layerpress/kernels/scales/levels.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "layerpress/kernels/numbers/element_levels.h"

namespace layerpress::kernels {
namespace {

struct HostOperations {
  static std::uint32_t bits_of(float value) { return std::bit_cast<std::uint32_t>(value); }
  static float float_of(std::uint32_t bits) { return std::bit_cast<float>(bits); }
  static float round_even(float x) { return std::nearbyint(x); }
  static float clamp(float x, float low, float high) { return std::clamp(x, low, high); }
};

/// The values of the codes 0, 1, ... of a float element, up to its maximum.
std::vector<float> magnitudes_of(const ElementType& element) {
  std::vector<float> values;
  with_levels<HostOperations>(element, [&](const auto& levels) {
    for (int code = 0; values.empty() || values.back() < element.maximum; ++code)
      values.push_back(levels.decode(static_cast<std::int8_t>(code)));
  });
  return values;
}

/// The bit of a code that is its sign.
std::int64_t sign_bit(const ElementType& element) {
  return static_cast<std::int64_t>(std::bit_ceil(magnitudes_of(element).size()));
}

/// Value by value: a magnitude goes up to the next one from the middle between both, on it only to an even code.
at::Tensor nearest_value(const at::Tensor& x, const ElementType& element) {
  const std::vector<float> values = magnitudes_of(element);
  const at::Tensor magnitude = x.abs();
  at::Tensor level = at::zeros_like(x);
  for (std::size_t i = 0; i + 1 < values.size(); ++i) {
    const double middle = (values[i] + values[i + 1]) / 2, step = values[i + 1] - values[i];
    level += step * (i % 2 == 0 ? magnitude > middle : magnitude >= middle).to(x.scalar_type());
  }
  return at::where(x < 0, -level, level);
}

}  // namespace

at::Tensor nearest_level(const at::Tensor& x, const at::Tensor& scale, const at::Tensor& zero_point,
                         const ElementType& element) {
  at::Tensor ratio = x / scale;
  if (zero_point.defined()) ratio = ratio + zero_point;
  ratio = ratio.clamp(element.minimum, element.maximum);
  if (element.element == Element::kInteger) return ratio.round();
  // ATen has a dtype for it, which is faster; a negative zero becomes a zero.
  if (element.element == Element::kE4m3) return ratio.add(0).to(at::kFloat8_e4m3fn).to(ratio.scalar_type());
  return nearest_value(ratio, element);
}

at::Tensor level_value(const at::Tensor& level, const at::Tensor& scale, const at::Tensor& zero_point) {
  return (zero_point.defined() ? level - zero_point : level) * scale;
}

at::Tensor level_codes(const at::Tensor& level, const ElementType& element) {
  if (element.element == Element::kInteger) return level.to(at::kChar);
  if (element.element == Element::kE4m3) return level.to(at::kFloat8_e4m3fn).view(at::kChar);
  const at::Tensor values = at::tensor(magnitudes_of(element), level.options());
  return at::bucketize(level.abs(), values).add_(at::signbit(level), sign_bit(element)).to(at::kChar);
}

at::Tensor code_levels(const at::Tensor& codes, const ElementType& element) {
  if (element.element == Element::kInteger) return codes.to(at::kFloat);
  if (element.element == Element::kE4m3) return codes.view(at::kFloat8_e4m3fn).to(at::kFloat);
  const at::Tensor magnitudes = at::tensor(magnitudes_of(element), codes.options().dtype(at::kFloat));
  const at::Tensor values = at::cat({magnitudes, -magnitudes});
  return values.index_select(0, codes.flatten().to(at::kLong)).view(codes.sizes());
}

}  // namespace layerpress::kernels
