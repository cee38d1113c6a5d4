#include "layerpress/kernels/scales/value_rounding.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace layerpress::kernels {
namespace {

TEST(ValueRounding, IntegersOfARow) {
  const at::Tensor x = at::tensor({1.0F, 0.0F, 0.5F, 0.26F, 100.0F, 255.0F, -3.0F, 0.0F}).view({2, 4});
  ValueRounding rounding{.rule = {integers(8), true}, .run = 4};
  // Scales 1 / 127.5 and 255 / 127.5 = 2: the largest code is 127, and -3 / 2 goes to the even -2.
  const at::Tensor rounded = rounded_values(x, rounding);
  EXPECT_NEAR(rounded[0][0].item<float>(), 127 / 127.5, 1e-6);
  EXPECT_NEAR(rounded[0][3].item<float>(), 33 / 127.5, 1e-6);
  EXPECT_EQ(rounded[1][0].item<float>(), 100);
  EXPECT_EQ(rounded[1][1].item<float>(), 254);
  EXPECT_EQ(rounded[1][2].item<float>(), -4);
  EXPECT_EQ(rounded[1][3].item<float>(), 0);
}

TEST(ValueRounding, AsymmetricIntegersOfARow) {
  const at::Tensor x = at::arange(0, 256, at::kFloat).view({1, 256});
  EXPECT_TRUE(at::equal(rounded_values(x, {.rule = {integers(8), false}, .run = 256}), x));
}

TEST(ValueRounding, OneScaleForAll) {
  const at::Tensor x = at::tensor({-300.0F, -1.2F, 0.3F, 9.9F}).view({1, 4});
  const ValueRounding rounding{.rule = {integers(8), false}, .given = {0.5}, .zero_points = {-100}};
  EXPECT_TRUE(at::equal(rounded_values(x, rounding), at::tensor({-14.0F, -1.0F, 0.5F, 10.0F}).view({1, 4})));
}

TEST(ValueRounding, OneScaleForEachRunOfFeatures) {
  const at::Tensor x = at::tensor({0.9F, 1000.0F, 0.9F, -9.0F, 3.0F, 16.1F, 0.1F, 40.0F}).view({2, 4});
  const ValueRounding rounding{.rule = {kE4m3, true}, .given = {1, 8}};
  const at::Tensor expected = at::tensor({0.875F, 448.0F, 0.875F, -9.0F, 3.0F, 16.0F, 0.09375F, 40.0F}).view({2, 4});
  EXPECT_TRUE(at::equal(rounded_values(x, rounding), expected));
}

/// Groups of 16 as NVFP4 has them: scales are e4m3 divided by a global scale.
TEST(ValueRounding, GroupsOfFp4) {
  at::manual_seed(4);
  const at::Tensor x = at::randn({3, 64});
  const float global = 448 * 6 / x.abs().max().item<float>();
  const ValueRounding rounding{
      .rule = {kE2m1, true}, .run = 16, .scales = {ScaleType::kE4m3, ScaleType::kFloat, global}};
  const at::Tensor rounded = rounded_values(x, rounding);
  const float magnitudes[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  for (int row = 0; row < 3; ++row)
    for (int group = 0; group < 4; ++group) {
      const at::Tensor own = x[row].slice(0, 16 * group, 16 * group + 16);
      const at::Tensor wide = own.abs().max() / 6 * global;
      const float scale = wide.to(at::kFloat8_e4m3fn).to(at::kFloat).item<float>() / global;
      for (int i = 0; i < 16; ++i) {
        const float value = own[i].item<float>(), got = rounded[row][16 * group + i].item<float>();
        float nearest = 0;
        for (const float magnitude : magnitudes)
          if (std::abs(std::abs(value) - magnitude * scale) < std::abs(std::abs(value) - nearest))
            nearest = magnitude * scale;
        EXPECT_NEAR(std::abs(got), nearest, 1e-6);
      }
    }
}

/// Groups of 32 as MX formats have them: scales are powers of two, here as compressed-tensors computes them.
TEST(ValueRounding, PowersOfTwo) {
  struct Case {
    ElementType element;
    float value, scale, rounded;
  };
  for (const Case& own :
       {Case{kE2m1, 0.1F, 1.0F / 64, 0.09375F}, Case{kE2m1, 3, 0.5F, 3}, Case{kE2m1, 5, 1, 4}, Case{kE2m1, 7.9F, 2, 8},
        Case{kE2m1, 100, 16, 96}, Case{kE4m3, 0.9F, 1.0F / 256, 0.875F}, Case{kE4m3, 7.9F, 1.0F / 32, 8}}) {
    at::Tensor x = at::zeros({1, 32});
    x[0][3] = -own.value;
    x[0][4] = own.scale;
    const at::Tensor rounded =
        rounded_values(x, {.rule = {own.element, true}, .run = 32, .scales = {ScaleType::kE8m0}});
    EXPECT_EQ(rounded[0][3].item<float>(), -own.rounded) << own.value;
    EXPECT_EQ(rounded[0][4].item<float>(), own.scale) << own.value;
  }
}

TEST(ValueRounding, ZerosAndPiecesAndDtypes) {
  EXPECT_TRUE(at::equal(rounded_values(at::zeros({2, 32}), {.rule = {kE4m3, true}, .run = 32}), at::zeros({2, 32})));
  at::manual_seed(5);
  const at::Tensor x = at::randn({5000, 512}).to(at::kBFloat16);
  const ValueRounding rounding{.rule = {kE4m3, true}, .run = 512};
  const at::Tensor whole = rounded_values(x, rounding);
  EXPECT_EQ(whole.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(at::equal(whole.slice(0, 4000, 4001), rounded_values(x.slice(0, 4000, 4001), rounding)));
  EXPECT_EQ(rounded_values(x.slice(0, 0, 0), rounding).size(0), 0);
}

/// Values of the fused pass and of ATen's operations: with scales that are found and given, near and beyond the ranges,
/// on rows and runs that no vector register divides.
TEST(ValueRounding, InOnePassAsWithAten) {
  at::manual_seed(6);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  at::Tensor wide = at::randn({301, 96}) * at::exp(3 * at::randn({301, 1}));
  wide[0] = 0;
  wide[1] *= 1e-30;
  wide[2] *= 1e30;
  wide[3] = at::arange(-48, 48, at::kFloat) / 8;  // values between two codes
  std::vector<ValueRounding> roundings;
  for (const std::int64_t run : {96, 48, 32, 24, 16}) {
    for (const bool symmetric : {true, false}) roundings.push_back({.rule = {integers(8), symmetric}, .run = run});
    roundings.push_back({.rule = {integers(4), true}, .run = run});
    roundings.push_back({.rule = {kE4m3, true}, .run = run});
    for (const ElementType& element : {kE2m1, kE4m3})
      roundings.push_back({.rule = {element, true}, .run = run, .scales = {ScaleType::kE8m0}});
    roundings.push_back({.rule = {kE2m1, true}, .run = run, .scales = {ScaleType::kE4m3, ScaleType::kFloat, 40}});
  }
  for (const ElementType& element : {integers(8), kE4m3, kE2m1}) {
    roundings.push_back({.rule = {element, true}, .given = {0.037F}});
    roundings.push_back({.rule = {element, true}, .given = {0.25F, 0.003F, 7}});
  }
  roundings.push_back({.rule = {integers(8), false}, .given = {0.5F, 0.01F}, .zero_points = {-100, 17}});
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16})
    for (std::size_t i = 0; i < roundings.size(); ++i) {
      at::Tensor x = wide.to(dtype).clone();
      EXPECT_TRUE(at::equal(rounded_values(x, roundings[i]), plain_rounded_values(x, roundings[i]))) << i << dtype;
      x[7][5] = nan;
      EXPECT_TRUE(rounded_values(x, roundings[i])[7][5].isnan().item<bool>()) << i << dtype;
    }
}

}  // namespace
}  // namespace layerpress::kernels
