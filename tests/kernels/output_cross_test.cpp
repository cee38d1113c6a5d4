#include "layerpress/kernels/layers/output_cross.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "layerpress/base/error.h"
#include "layerpress/kernels/products/gram.h"
#include "tests/kernels/plain_products.h"

namespace layerpress::kernels {
namespace {

struct CrossShape {
  std::int64_t tokens, features, rows;
};

struct Data {
  ResidualValues values;
  at::Tensor bias;
};

Data data_of(const CrossShape& shape, at::ScalarType dtype) {
  const auto near = [&](const at::Tensor& x) { return (x.to(at::kFloat) + 0.1 * at::randn(x.sizes())).to(dtype); };
  const at::Tensor x = (at::randn({shape.tokens, shape.features}) + 0.5).to(dtype),
                   stream = (3 * at::randn({shape.tokens, shape.rows})).to(dtype);
  return {{x, stream, near(stream), near(stream)}, (0.1 * at::randn({shape.rows})).to(dtype)};
}

at::Tensor sums_of(const Data& data, const ResidualShares& shares) {
  at::Tensor sums = at::zeros({data.bias.size(0), data.values.x.size(1)});
  accumulate_output_cross(sums, data.values, data.bias, shares);
  return sums;
}

double distance(const at::Tensor& a, const at::Tensor& expected) {
  return ((a.to(at::kDouble) - expected).norm() / expected.norm()).item<double>();
}

class OutputCrossTest : public ::testing::TestWithParam<CrossShape> {};

TEST_P(OutputCrossTest, MatchesDoublePrecision) {
  at::manual_seed(31);
  for (const auto& [dtype, most] : {std::pair{at::kBFloat16, 1e-2}, {at::kHalf, 2e-3}, {at::kFloat, 1e-5}})
    for (const ResidualShares& shares : {ResidualShares{0.6, 0.3}, {1.0, 0.0}, {0.0, 1.0}, {0.5, -2.0}}) {
      const Data data = data_of(GetParam(), dtype);
      const at::Tensor expected = plain_output_cross(data.values, data.bias, shares);
      at::Tensor sums = sums_of(data, shares);
      EXPECT_LT(distance(sums, expected), most) << at::toString(dtype) << " " << shares.output << " " << shares.stream;
      accumulate_output_cross(sums, data.values, data.bias, shares);
      EXPECT_LT(distance(sums, 2 * expected), most) << at::toString(dtype);
    }
}

// Around the panels of 48 columns, and the tokens that are taken at once.
INSTANTIATE_TEST_SUITE_P(Shapes, OutputCrossTest,
                         ::testing::Values(CrossShape{1, 1, 1}, CrossShape{2, 47, 49}, CrossShape{513, 49, 97},
                                           CrossShape{2047, 100, 30}, CrossShape{2050, 193, 48}));

TEST(OutputCross, OfEqualStreamsAndNoOutputIsZero) {
  at::manual_seed(32);
  for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat}) {
    Data data = data_of({600, 96, 50}, dtype);
    data.values.stream_original = data.values.stream;
    data.values.output_original = data.bias.expand({600, 50});
    EXPECT_TRUE(at::equal(sums_of(data, {0.6, 0.3}), at::zeros({50, 96})));
  }
}

TEST(OutputCross, LeavesItsInputsAlone) {
  at::manual_seed(33);
  for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat}) {
    const Data data = data_of({100, 96, 50}, dtype);
    const at::Tensor stream = data.values.stream.clone(), output = data.values.output_original.clone();
    sums_of(data, {0.6, 0.3});
    EXPECT_TRUE(at::equal(stream, data.values.stream));
    EXPECT_TRUE(at::equal(output, data.values.output_original));
  }
}

TEST(Product, IsTheSameOnAnyNumberOfThreads) {
  at::manual_seed(34);
  const at::Tensor left = at::randn({1500, 130}).to(at::kBFloat16), x = at::randn({1500, 200}).to(at::kBFloat16);
  const int threads = at::get_num_threads();
  at::Tensor one = at::zeros({130, 200}), two = at::zeros({130, 200});
  at::set_num_threads(1);
  accumulate_product(one, left, x);
  at::set_num_threads(2);
  accumulate_product(two, left, x);
  at::set_num_threads(threads);
  EXPECT_TRUE(at::equal(one, two));
  EXPECT_LT(distance(one, left.to(at::kDouble).t().mm(x.to(at::kDouble))), 1e-5);
}

TEST(Product, RefusesWhatDoesNotFit) {
  at::Tensor sums = at::zeros({30, 40});
  const at::Tensor left = at::ones({5, 30}), x = at::ones({5, 40});
  EXPECT_THROW(accumulate_product(sums, x, left), InternalError);
  EXPECT_THROW(accumulate_product(sums, left.slice(0, 1), x), InternalError);
  accumulate_product(sums, left.to(at::kBFloat16), x);  // two dtypes are fine on a CPU
  EXPECT_TRUE(at::equal(sums, at::full({30, 40}, 5.0f)));
  at::Tensor wide = at::zeros({30, 40}, at::kDouble);
  EXPECT_THROW(accumulate_product(wide, left, x), InternalError);
}

}  // namespace
}  // namespace layerpress::kernels
