#include "layerpress/kernels/products/gram.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "layerpress/base/error.h"
#include "tests/kernels/plain_products.h"

namespace layerpress::kernels {
namespace {

double relative_norm(const at::Tensor& a, const at::Tensor& expected) {
  return ((a.to(at::kDouble) - expected).norm() / expected.norm()).item<double>();
}

double triangle_difference(const at::Tensor& gram, const at::Tensor& reference) {
  const at::Tensor expected = reference.triu();
  return ((gram.to(at::kDouble).triu() - expected).norm() / expected.norm()).item<double>();
}

struct Shape {
  std::int64_t tokens, features;
};

class GramTest : public ::testing::TestWithParam<Shape> {};

TEST_P(GramTest, MatchesDoublePrecision) {
  at::manual_seed(1);
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf, at::kFloat}) {
    // A mean far from zero makes sums grow, as activations do.
    const at::Tensor x = (at::randn({GetParam().tokens, GetParam().features}) + 0.5).to(dtype);
    at::Tensor gram = at::zeros({x.size(1), x.size(1)});
    accumulate_gram(gram, x);
    EXPECT_LT(triangle_difference(gram, plain_gram(x)), 1e-5) << at::toString(dtype);
    accumulate_gram(gram, x);
    EXPECT_LT(triangle_difference(gram, 2 * plain_gram(x)), 1e-5) << at::toString(dtype);
  }
}

// Around the panels of 48 columns, the chunks of 512 tokens, and pairs of tokens.
INSTANTIATE_TEST_SUITE_P(Shapes, GramTest,
                         ::testing::Values(Shape{1, 1}, Shape{2, 47}, Shape{7, 48}, Shape{513, 49}, Shape{1030, 100},
                                           Shape{511, 193}, Shape{2100, 576}));

TEST(Gram, IsTheSameOnAnyNumberOfThreads) {
  at::manual_seed(2);
  const at::Tensor x = at::randn({1500, 200}).to(at::kBFloat16);
  const int threads = at::get_num_threads();
  at::Tensor one = at::zeros({200, 200}), two = at::zeros({200, 200});
  at::set_num_threads(1);
  accumulate_gram(one, x);
  at::set_num_threads(2);
  accumulate_gram(two, x);
  at::set_num_threads(threads);
  EXPECT_TRUE(at::equal(one.triu(), two.triu()));
}

TEST(Gram, OfBatchesAddsUp) {
  at::manual_seed(3);
  const at::Tensor x = at::randint(-8, 8, {600, 64}).to(at::kBFloat16);  // small integers: sums are exact
  at::Tensor whole = at::zeros({64, 64}), parts = at::zeros({64, 64});
  accumulate_gram(whole, x);
  for (std::int64_t begin = 0; begin < 600; begin += 150) accumulate_gram(parts, x.slice(0, begin, begin + 150));
  EXPECT_TRUE(at::equal(whole.triu(), parts.triu()));
}

class CrossGramTest : public ::testing::TestWithParam<Shape> {
 protected:
  at::Tensor inputs(at::ScalarType dtype) const {
    return (at::randn({GetParam().tokens, GetParam().features}) + 0.5).to(dtype);
  }
};

TEST_P(CrossGramTest, MatchesDoublePrecisionForInputsNearEachOther) {
  at::manual_seed(4);
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf, at::kFloat}) {
    const at::Tensor x = inputs(dtype);
    // Differences of near numbers are exact, in bf16, too: rounding them loses nothing.
    const at::Tensor reference = (x.to(at::kFloat) * (1 + 0.05 * at::randn(x.sizes()))).to(dtype),
                     unchanged = reference.clone();
    at::Tensor cross = at::zeros({x.size(1), x.size(1)});
    accumulate_cross_gram(cross, reference, x);
    EXPECT_LT(relative_norm(cross, plain_cross_gram(reference, x)), 1e-5) << at::toString(dtype);
    accumulate_cross_gram(cross, reference, x);
    EXPECT_LT(relative_norm(cross, 2 * plain_cross_gram(reference, x)), 1e-5) << at::toString(dtype);
    EXPECT_TRUE(at::equal(reference, unchanged));
  }
}

TEST_P(CrossGramTest, RoundsFarDifferencesAtMostOnce) {
  at::manual_seed(5);
  const at::Tensor x = inputs(at::kBFloat16), reference = inputs(at::kBFloat16);
  at::Tensor cross = at::zeros({x.size(1), x.size(1)});
  accumulate_cross_gram(cross, reference, x);
  const at::Tensor rounded = (reference.to(at::kFloat) - x.to(at::kFloat)).to(at::kBFloat16).to(at::kDouble);
  const at::Tensor of_rounded = rounded.t().mm(x.to(at::kDouble)), exact = plain_cross_gram(reference, x);
  EXPECT_LT(std::min(relative_norm(cross, of_rounded), relative_norm(cross, exact)), 1e-5);
}

TEST_P(CrossGramTest, RowByRowPartGivesTheSameBits) {
  at::manual_seed(6);
  for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat}) {
    const at::Tensor x = inputs(dtype), reference = inputs(dtype);
    const std::int64_t features = x.size(1);
    at::Tensor whole = at::zeros({features, features}), parts = at::zeros({features, features});
    accumulate_cross_gram(whole, reference, x);
    for (std::int64_t first = 0; first < features; first += kGramRowStep)
      accumulate_cross_gram_rows(parts, reference, x, first, std::min(first + kGramRowStep, features));
    EXPECT_TRUE(at::equal(whole, parts)) << at::toString(dtype);
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, CrossGramTest,
                         ::testing::Values(Shape{1, 1}, Shape{2, 47}, Shape{7, 48}, Shape{513, 49}, Shape{1030, 100},
                                           Shape{511, 193}, Shape{2100, 576}));

TEST(CrossGram, IsTheSameOnAnyNumberOfThreads) {
  at::manual_seed(7);
  const at::Tensor x = at::randn({1500, 200}).to(at::kBFloat16), reference = at::randn({1500, 200}).to(at::kBFloat16);
  const int threads = at::get_num_threads();
  at::Tensor one = at::zeros({200, 200}), two = at::zeros({200, 200});
  at::set_num_threads(1);
  accumulate_cross_gram(one, reference, x);
  at::set_num_threads(2);
  accumulate_cross_gram(two, reference, x);
  at::set_num_threads(threads);
  EXPECT_TRUE(at::equal(one, two));
}

TEST(CrossGram, OfEqualInputsIsZero) {
  at::manual_seed(8);
  const at::Tensor x = at::randn({600, 96}).to(at::kBFloat16);
  at::Tensor cross = at::zeros({96, 96});
  accumulate_cross_gram(cross, x, x.clone());
  EXPECT_TRUE(at::equal(cross, at::zeros({96, 96})));
}

TEST(CrossGram, RefusesInputsThatDoNotFit) {
  at::Tensor cross = at::zeros({400, 400});
  const at::Tensor x = at::ones({3, 400});
  EXPECT_THROW(accumulate_cross_gram(cross, at::ones({2, 400}), x), InternalError);
  EXPECT_THROW(accumulate_cross_gram(cross, at::ones({3, 400}, at::kBFloat16), x), InternalError);
  EXPECT_THROW(accumulate_cross_gram_rows(cross, x, x, 0, 100), InternalError);
  EXPECT_THROW(accumulate_cross_gram_rows(cross, x, x, 10, 400), InternalError);
}

TEST(Gram, SymmetricFromUpperIgnoresTheLowerTriangle) {
  const at::Tensor gram = at::tensor({1.0f, 2.0f, 99.0f, 3.0f}).view({2, 2});
  EXPECT_TRUE(at::equal(symmetric_from_upper(gram), at::tensor({1.0f, 2.0f, 2.0f, 3.0f}).view({2, 2})));
}

}  // namespace
}  // namespace layerpress::kernels
