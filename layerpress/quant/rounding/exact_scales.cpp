#include "layerpress/quant/rounding/exact_scales.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "layerpress/kernels/numbers/scale_rounding.h"

namespace layerpress::quant {
namespace {

constexpr int kMantissaBits = 23;
constexpr int kLargestCodeExponent = 2;  // 4 and 6 are codes, 8 is none
constexpr int kLargestE4m3Exponent = 8;
constexpr float kSmallestE4m3 = 0.001953125f;  // 2^-9

/// The magnitudes of e2m1 in halves: 0, 1, 2, 3, 4, 6, 8 and 12, a bit for each.
constexpr std::int64_t kHalvesOfCodes = 0x115F;

at::Tensor exact_scales_of_rows(const at::Tensor& rows, std::int64_t group_size, const kernels::ScaleFormat& stored) {
  at::Tensor magnitudes = rows.abs().to(at::kFloat).view({rows.size(0), -1, group_size});
  const at::Tensor largest = magnitudes.amax(-1);
  const at::Tensor exponent =
      largest.view(at::kInt).bitwise_right_shift(kMantissaBits).sub_(kLargestCodeExponent).clamp_min_(1);
  const at::Tensor power = exponent.bitwise_left_shift(kMantissaBits).view(at::kFloat);
  const at::Tensor halves = magnitudes.div_(power.unsqueeze(-1)).mul_(2);  // below 16
  const at::Tensor whole = halves.to(at::kInt);
  const at::Tensor is_code = at::bitwise_right_shift(at::Scalar(kHalvesOfCodes), whole).bitwise_and(1).ne(0);
  const at::Tensor in_e4m3 = power * stored.global;
  const at::Tensor exact = halves.eq(whole).logical_and_(is_code).all(-1).logical_and_(
      in_e4m3.ge(kSmallestE4m3).logical_and_(in_e4m3.le(kernels::kLargestE4m3)));
  return at::where(exact, power, 0).masked_fill_(largest.eq(0), kernels::smallest_scale(stored));
}

}  // namespace

float global_scale_of_powers(double largest) {
  if (!(largest > 0) || !std::isfinite(largest)) return 1;
  const int exponent = kLargestE4m3Exponent + kLargestCodeExponent - std::ilogb(largest);
  return std::ldexp(1.0f, std::clamp(exponent, -126, 126));
}

at::Tensor exact_scales(const at::Tensor& weight, std::int64_t group_size, const kernels::ScaleFormat& stored) {
  const std::int64_t rows = weight.size(0), columns = weight.size(1);
  constexpr std::int64_t kElements = 1 << 17;  // limits memory
  const std::int64_t step = std::max<std::int64_t>(1, kElements / columns);
  const at::Tensor scales = at::empty({rows, columns / group_size}, weight.options().dtype(at::kFloat));
  for (std::int64_t first = 0; first < rows; first += step) {
    const std::int64_t count = std::min(step, rows - first);
    scales.narrow(0, first, count).copy_(exact_scales_of_rows(weight.narrow(0, first, count), group_size, stored));
  }
  return scales;
}

}  // namespace layerpress::quant
