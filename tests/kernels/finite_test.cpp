#include "layerpress/kernels/finite.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

namespace layerpress::kernels {
namespace {

TEST(AllFinite, FindsEveryNonFiniteValueInEveryDtype) {
  at::manual_seed(41);
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf, at::kFloat, at::kDouble}) {
    const at::Tensor good = at::randn({3, 70000}).to(dtype);
    EXPECT_TRUE(all_finite(good)) << dtype;
    EXPECT_TRUE(all_finite(good.t())) << dtype;
    for (const double bad : {HUGE_VAL, -HUGE_VAL, std::nan("")})
      for (const std::int64_t place : {0, 65535, 65536, 209999}) {
        at::Tensor damaged = good.clone();
        damaged.view({-1})[place] = bad;
        EXPECT_FALSE(all_finite(damaged)) << dtype << " " << bad << " at " << place;
        EXPECT_FALSE(all_finite(damaged.t())) << dtype;
      }
  }
}

TEST(AllFinite, ExtremesAreFinite) {
  EXPECT_TRUE(all_finite(at::tensor({65504.0, -65504.0, 6e-8, -0.0}).to(at::kHalf)));
  EXPECT_TRUE(all_finite(at::tensor({3.3e38, -3.3e38, 1e-40, 0.0}).to(at::kBFloat16)));
  EXPECT_TRUE(all_finite(at::tensor({3.4e38f, -3.4e38f, 1e-45f})));
  EXPECT_TRUE(all_finite(at::empty({0, 4})));
}

TEST(AllFinite, KnowsNumbersOfEightBits) {
  for (const at::ScalarType dtype : {at::kFloat8_e4m3fn, at::kFloat8_e5m2, at::kFloat8_e8m0fnu}) {
    at::Tensor values = at::ones({2, 4}).to(dtype);
    EXPECT_TRUE(all_finite(values)) << dtype;
    values.view(at::kByte)[1][2] = dtype == at::kFloat8_e5m2 ? 0x7C : 0xFF;
    EXPECT_FALSE(all_finite(values)) << dtype;
  }
}

TEST(LargestMagnitude, IsThatOfTheWeight) {
  at::manual_seed(42);
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf, at::kFloat}) {
    const at::Tensor weight = at::randn({3, 70000}).to(dtype);
    EXPECT_EQ(largest_magnitude(weight), weight.abs().amax().item<double>()) << dtype;
    EXPECT_EQ(largest_magnitude(weight.t()), weight.abs().amax().item<double>()) << dtype;
    at::Tensor negative = weight.clone();
    negative.view({-1})[209999] = -100;
    EXPECT_EQ(largest_magnitude(negative), 100) << dtype;
    EXPECT_EQ(largest_magnitude(at::zeros({2, 2}, dtype)), 0);
    EXPECT_EQ(largest_magnitude(at::empty({0, 2}, dtype)), 0);
  }
}

}  // namespace
}  // namespace layerpress::kernels
