#include "layerpress/modifier/quantizing/output_power.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>

namespace layerpress::modifier {
namespace {

/// The Gram matrix of inputs, with what may not be read below the diagonal.
at::Tensor upper_gram(const at::Tensor& inputs) {
  const at::Tensor gram = at::mm(inputs.t(), inputs);
  const at::Tensor below = at::ones_like(gram).tril(-1).to(at::kBool);
  return gram.masked_fill(below, std::numeric_limits<float>::quiet_NaN());
}

TEST(OutputPowerTest, IsTheMeanSquareOfTheOutputs) {
  const at::Tensor inputs = at::randn({90, 700}) + 0.3, weight = at::randn({40, 700});
  const double expected = at::mm(inputs, weight.t()).square().mean().item<double>();
  EXPECT_NEAR(mean_output_power(weight, upper_gram(inputs), 90), expected, 1e-4 * expected);
}

TEST(OutputPowerTest, SomeRowsStandForMany) {
  const at::Tensor inputs = at::randn({64, 32}), weight = at::ones({1000, 32}).to(at::kBFloat16);
  const double expected = inputs.sum(1).square().mean().item<double>();
  EXPECT_NEAR(mean_output_power(weight, upper_gram(inputs), 64), expected, 1e-4 * expected);
}

TEST(OutputPowerTest, LargeRowsThatAreLeftOutCount) {
  const at::Tensor inputs = at::randn({64, 32}), weight = at::randn({1024, 32});
  weight.narrow(0, 1, 1).mul_(100);  // every fourth row is taken, from the first on
  const double expected = at::mm(inputs, weight.t()).square().mean().item<double>();
  EXPECT_NEAR(mean_output_power(weight, upper_gram(inputs), 64), expected, 0.5 * expected);
}

}  // namespace
}  // namespace layerpress::modifier
