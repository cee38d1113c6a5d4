#include "layerpress/execution/expert_contributions.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

namespace layerpress::execution {
namespace {

/// The sum over tokens of weight * length of the output, in double precision.
double plain_sum(const at::Tensor& outputs, const at::Tensor& weights) {
  double sum = 0;
  for (std::int64_t token = 0; token < outputs.size(0); ++token) {
    double square = 0;
    for (std::int64_t i = 0; i < outputs.size(1); ++i) square += std::pow(outputs[token][i].item<double>(), 2);
    sum += weights[token].item<double>() * std::sqrt(square);
  }
  return sum;
}

TEST(ExpertContributions, AreSumsOverBatches) {
  at::manual_seed(1);
  ExpertContributions contributions;
  double expected = 0;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor outputs = at::randn({5, 33}).to(dtype), weights = at::rand({5}).to(dtype);
    contributions.add(7, outputs, weights, {});
    expected += plain_sum(outputs, weights);
  }
  contributions.add(8, at::ones({1, 4}), at::ones({1}), {});
  EXPECT_NEAR(contributions.of(7).sum / expected, 1, 1e-6);
  EXPECT_EQ(contributions.of(7).tokens, 10);
  EXPECT_EQ(contributions.of(8).sum, 2);
  EXPECT_EQ(contributions.of(9).tokens, 0);
  EXPECT_EQ(contributions.of(9).sum, 0);
}

TEST(ExpertContributions, OmitTokensThatDoNotCount) {
  ExpertContributions contributions;
  contributions.add(1, at::ones({3, 4}), at::tensor({1.0f, 2.0f, 4.0f}), at::tensor({1, 0, 1}).to(at::kBool));
  EXPECT_EQ(contributions.of(1).sum, 10);
  EXPECT_EQ(contributions.of(1).tokens, 2);
}

}  // namespace
}  // namespace layerpress::execution
