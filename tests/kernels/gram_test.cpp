#include "layerpress/kernels/gram.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

namespace layerpress::kernels {
namespace {

double relative_difference(const at::Tensor& gram, const at::Tensor& reference) {
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
    EXPECT_LT(relative_difference(gram, gram_reference(x)), 1e-5) << at::toString(dtype);
    accumulate_gram(gram, x);
    EXPECT_LT(relative_difference(gram, 2 * gram_reference(x)), 1e-5) << at::toString(dtype);
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

TEST(Gram, SymmetricFromUpperIgnoresTheLowerTriangle) {
  const at::Tensor gram = at::tensor({1.0f, 2.0f, 99.0f, 3.0f}).view({2, 2});
  EXPECT_TRUE(at::equal(symmetric_from_upper(gram), at::tensor({1.0f, 2.0f, 2.0f, 3.0f}).view({2, 2})));
}

}  // namespace
}  // namespace layerpress::kernels
