#include "layerpress/kernels/products/relative_error.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "layerpress/kernels/scales/dequantize.h"

namespace layerpress::kernels {
namespace {

double by_definition(const at::Tensor& weight, const at::Tensor& approximation) {
  const at::Tensor wide = weight.to(at::kDouble);
  return ((wide - approximation.to(at::kDouble)).norm() / wide.norm()).item<double>();
}

TEST(RelativeError, EveryDtypeAgreesWithTheDefinition) {
  at::manual_seed(51);
  const at::Tensor exact = at::randn({300, 1000});
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf, at::kFloat, at::kDouble})
    for (const at::ScalarType other : {at::kBFloat16, at::kHalf, at::kFloat}) {
      const at::Tensor weight = exact.to(dtype), close = (exact + 0.01 * at::randn({300, 1000})).to(other);
      EXPECT_NEAR(relative_error(weight, close) / by_definition(weight, close), 1.0, 1e-5) << dtype << other;
      EXPECT_NEAR(relative_error(weight.t(), close.t()) / by_definition(weight, close), 1.0, 1e-5) << dtype << other;
      const at::Tensor scalar = relative_error_scalar(weight, close);
      EXPECT_EQ(scalar.dim(), 0);
      EXPECT_NEAR(scalar.item<double>() / by_definition(weight, close), 1.0, 1e-5) << dtype << other;
    }
}

TEST(RelativeError, OfNothing) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat, at::kDouble}) {
    EXPECT_EQ(relative_error(at::zeros({4, 4}, dtype), at::ones({4, 4}, dtype)), 0);
    EXPECT_EQ(relative_error(at::ones({4, 4}, dtype), at::ones({4, 4}, dtype)), 0);
  }
}

TEST(SquaredDifference, EqualsItsDefinition) {
  at::manual_seed(53);
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf, at::kFloat, at::kDouble})
    for (const std::int64_t rows : {0, 1, 700}) {
      const at::Tensor a = at::randn({rows, 300}).to(dtype), b = at::randn({rows, 300}).to(dtype);
      const double expected = (a.to(at::kDouble) - b.to(at::kDouble)).square().sum().item<double>();
      EXPECT_NEAR(squared_difference(a, b), expected, 1e-5 * expected) << dtype << rows;
      EXPECT_NEAR(squared_difference(a.t(), b.t()), expected, 1e-5 * expected) << dtype << rows;
    }
}

TEST(QuantizationError, EqualsTheErrorOfTheDequantizedWeight) {
  at::manual_seed(52);
  const ElementType elements[] = {integers(4), kE4m3, kE2m1};
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf, at::kFloat})
    for (const ElementType& element : elements)
      for (const ScaleGrid& grid : {ScaleGrid{1, 64}, ScaleGrid{1, 300}, ScaleGrid{50, 128}, ScaleGrid{130, 300}}) {
        const at::Tensor weight = at::randn({130, 300}).to(dtype);
        const bool symmetric = element.element != Element::kInteger || grid.block_rows > 1;
        const ChosenScales scales = search_scales(weight, grid, {element, symmetric}, {}, {ScaleType::kBf16}, {});
        const at::Tensor codes = round_to_nearest(weight, grid, element, scales);
        const at::Tensor values = dequantize(codes, grid, element, scales, dtype);
        const at::Tensor level = code_levels(codes, element);
        const at::Tensor zero = symmetric ? at::Tensor() : spread_blocks(scales.zero_point, grid, 130, 300);
        EXPECT_TRUE(at::equal(values, level_value(level, spread_blocks(scales.scale, grid, 130, 300), zero).to(dtype)));
        const double error = quantization_error(weight, codes, grid, element, scales);
        EXPECT_NEAR(error / by_definition(weight, values), 1.0, 1e-5) << dtype << element.maximum << grid.block_rows;
      }
}

}  // namespace
}  // namespace layerpress::kernels
