#include "layerpress/kernels/layers/linear.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "layerpress/kernels/layers/transformer.h"
#include "tests/kernels/relative_difference.h"

namespace layerpress::kernels {
namespace {

/// Outputs from the definition in double precision, rounded to the inputs' dtype.
at::Tensor product(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias = {}) {
  const at::Tensor y = at::matmul(x.to(at::kDouble), weight.to(at::kDouble).t());
  return (bias.defined() ? y + bias.to(at::kDouble) : y).to(x.scalar_type());
}

struct ProductShape {
  std::int64_t rows, outputs, features;
};
// Rows, outputs and features around the sizes of tiles, panels and chunks.
const std::vector<ProductShape> kShapes = {{1, 1, 2},     {1, 33, 30},   {13, 16, 32},  {25, 31, 34},  {24, 48, 576},
                                           {513, 17, 64}, {60, 7, 2050}, {7, 40, 4100}, {100, 65, 33}, {1030, 96, 18}};

TEST(Linear, EqualsTheDefinition) {
  at::manual_seed(1);
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf, at::kFloat})
    for (const auto& [rows, outputs, features] : kShapes) {
      const at::Tensor x = at::randn({rows, features}).to(dtype), weight = at::randn({outputs, features}).to(dtype);
      const at::Tensor bias = at::randn({outputs}).to(dtype);
      // Of bf16 some results lie so near the middle between two values that fp32 sums round to the other one.
      const double bound = dtype == at::kFloat ? 2e-6 : 1e-3;
      EXPECT_LT(relative_difference(kernels::linear(x, weight), product(x, weight)), bound) << rows << " " << outputs;
      EXPECT_LT(relative_difference(kernels::linear(x, weight, bias), product(x, weight, bias)), bound)
          << rows << " " << outputs;
    }
}

TEST(Linear, TakesViewsAndMoreDimensions) {
  at::manual_seed(2);
  const at::Tensor x = at::randn({3, 20, 5}).to(at::kBFloat16).transpose(1, 2);
  const at::Tensor weight = at::randn({20, 9}).to(at::kBFloat16).t();
  const at::Tensor y = kernels::linear(x, weight);
  EXPECT_EQ(y.sizes(), at::IntArrayRef({3, 5, 9}));
  EXPECT_LT(relative_difference(y, product(x, weight)), 1e-3);
  EXPECT_EQ(kernels::linear(x, weight, at::Tensor()).sizes(), y.sizes()) << "an undefined bias is none";
  EXPECT_EQ(kernels::linear(at::empty({0, 20}, at::kBFloat16), weight).sizes(), at::IntArrayRef({0, 9}));
}

TEST(Linear, PassesOnWhatIsNotFinite) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf, at::kFloat}) {
    at::Tensor x = at::ones({14, 64}, dtype);
    x[3][5] = std::numeric_limits<float>::infinity();
    x[13][63] = std::numeric_limits<float>::quiet_NaN();
    const at::Tensor y = kernels::linear(x, at::ones({20, 64}, dtype)).to(at::kFloat);
    EXPECT_TRUE(y[3].isinf().all().item<bool>());
    EXPECT_TRUE(y[13].isnan().all().item<bool>());
    EXPECT_TRUE(y[0].eq(64).all().item<bool>());
  }
  // What is too large for float16 becomes infinite, what is small is not lost.
  const at::Tensor large = at::full({1, 2}, 200.0).to(at::kHalf), small = at::full({1, 2}, 0x1p-12).to(at::kHalf);
  EXPECT_TRUE(kernels::linear(large, large).isinf().all().item<bool>());
  EXPECT_EQ(kernels::linear(small, small).item<float>(), 0x1p-23f);
}

/// Runs `function` with this many threads.
template <typename Function>
at::Tensor with_threads(int threads, Function&& function) {
  const int before = at::get_num_threads();
  at::set_num_threads(threads);
  const at::Tensor result = function();
  at::set_num_threads(before);
  return result;
}

TEST(Linear, BitsOfAnOutputDependOnItsOwnRowAndColumnOnly) {
  at::manual_seed(3);
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf, at::kFloat}) {
    const at::Tensor x = at::randn({700, 2090}).to(dtype), weight = at::randn({83, 2090}).to(dtype);
    const at::Tensor y = with_threads(1, [&] { return kernels::linear(x, weight); });
    EXPECT_TRUE(at::equal(with_threads(3, [&] { return kernels::linear(x, weight); }), y));
    EXPECT_TRUE(at::equal(kernels::linear(x.slice(0, 5, 42), weight), y.slice(0, 5, 42)));
    EXPECT_TRUE(at::equal(kernels::linear(x, weight.slice(0, 3, 50)), y.slice(1, 3, 50)));
  }
}

TEST(Linear, TakesWeightsOfAnotherType) {
  at::manual_seed(5);
  const at::Tensor x = at::randn({77, 130}), weight = at::randn({50, 130}).to(at::kBFloat16);
  const at::Tensor bias = at::randn({50}).to(at::kHalf);
  const at::Tensor y = kernels::linear(x, weight, bias);
  EXPECT_EQ(y.scalar_type(), at::kFloat);
  EXPECT_LT(relative_difference(y, product(x, weight.to(at::kFloat), bias)), 2e-6);
}

TEST(GatedLinear, IsTheProductsGated) {
  at::manual_seed(4);
  for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat})
    for (const auto& [rows, outputs, features] : kShapes)
      for (const char* function : {"silu", "gelu_tanh"}) {
        const at::Tensor x = at::randn({rows, features}).to(dtype);
        const at::Tensor gate = at::randn({outputs, features}).to(dtype), up = at::randn({outputs, features}).to(dtype);
        EXPECT_TRUE(at::equal(gated_linear(function, x, gate, up),
                              gated_activation(function, kernels::linear(x, gate), kernels::linear(x, up))))
            << function << " " << rows << " " << outputs << " " << features;
      }
}

}  // namespace
}  // namespace layerpress::kernels
