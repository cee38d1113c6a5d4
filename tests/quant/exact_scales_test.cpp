#include "layerpress/quant/rounding/exact_scales.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

namespace layerpress::quant {
namespace {

constexpr std::int64_t kGroup = 16;

kernels::ScaleFormat format_for(const at::Tensor& weight) {
  return {kernels::ScaleType::kE4m3, kernels::ScaleType::kFloat,
          global_scale_of_powers(weight.abs().max().item<double>())};
}

/// A group of e2m1's values, the largest of which is `largest`, times 2^exponent.
at::Tensor group_of(double largest, int exponent) {
  const at::Tensor values = at::tensor({0.0, 0.5, -1.0, 1.5, 2.0, -3.0, 4.0, 6.0}, at::kFloat).repeat(2);
  return (values.clamp(-largest, largest) * std::ldexp(1.0, exponent)).view({1, kGroup});
}

TEST(ExactScales, PowersOfTwoGiveTheValuesBack) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf, at::kFloat}) {
    const at::Tensor weight =
        at::cat({group_of(6, -3), group_of(4, -8), group_of(1.5, 0), group_of(0.5, -5)}).to(dtype);
    const kernels::ScaleFormat stored = format_for(weight);
    const at::Tensor scales = exact_scales(weight, kGroup, stored);
    ASSERT_EQ(scales.sizes(), (std::vector<std::int64_t>{4, 1}));
    const at::Tensor codes = weight.to(at::kFloat) / scales;
    EXPECT_TRUE(
        at::isin(codes.abs(), at::tensor({0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0}, at::kFloat)).all().item<bool>());
    const at::Tensor held = (scales * stored.global).to(at::kFloat8_e4m3fn).to(at::kFloat) / stored.global;
    EXPECT_TRUE(at::equal(held, scales));
  }
}

TEST(ExactScales, OtherValuesHaveNone) {
  at::Tensor weight = at::cat({group_of(6, 0), group_of(6, 0), group_of(6, 0)});
  weight[0][3] = 5.0;
  weight[1][3] = 1.25;
  const at::Tensor scales = exact_scales(weight, kGroup, format_for(weight));
  EXPECT_EQ(scales[0].item<float>(), 0);
  EXPECT_EQ(scales[1].item<float>(), 0);
  EXPECT_EQ(scales[2].item<float>(), 1);
}

TEST(ExactScales, EighteenPowersFitAndNoMore) {
  const at::Tensor near = at::cat({group_of(6, 3), group_of(6, 3 - 17)}),
                   far = at::cat({group_of(6, 3), group_of(6, 3 - 18)});
  EXPECT_GT(exact_scales(near, kGroup, format_for(near))[1].item<float>(), 0);
  EXPECT_EQ(exact_scales(far, kGroup, format_for(far))[1].item<float>(), 0);
}

TEST(ExactScales, AGroupOfZerosHasAScale) {
  const at::Tensor weight = at::cat({group_of(6, 0), at::zeros({1, kGroup})});
  EXPECT_GT(exact_scales(weight, kGroup, format_for(weight))[1].item<float>(), 0);
  EXPECT_EQ(global_scale_of_powers(0), 1);
}

}  // namespace
}  // namespace layerpress::quant
