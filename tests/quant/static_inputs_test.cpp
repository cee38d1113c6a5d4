// Scales and zero points of inputs against compressed-tensors' formulas.
#include "layerpress/quant/static_inputs.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "layerpress/base/error.h"

namespace layerpress::quant {
namespace {

QuantizationArgs inputs_of(NumberType type, bool symmetric) {
  QuantizationArgs inputs;
  inputs.type = type;
  inputs.symmetric = symmetric;
  return inputs;
}

const QuantizationArgs kFp8 = inputs_of(NumberType::kFloat, true), kInt8 = inputs_of(NumberType::kInt, true),
                       kAsymmetric = inputs_of(NumberType::kInt, false);

TEST(StaticInputs, ScalesFollowFromTheRange) {
  EXPECT_DOUBLE_EQ(input_scale_of(kFp8, -2, 7).scale, 7.0 / 448);
  EXPECT_DOUBLE_EQ(input_scale_of(kFp8, -9, 7).scale, 9.0 / 448);
  EXPECT_DOUBLE_EQ(input_scale_of(kInt8, -9, 7).scale, 9 / 127.5);
  const InputScale asymmetric = input_scale_of(kAsymmetric, -1, 3);
  EXPECT_DOUBLE_EQ(asymmetric.scale, 4.0 / 255);
  EXPECT_DOUBLE_EQ(asymmetric.zero_point, -64);  // -128 + 255 / 4
}

TEST(StaticInputs, ZeroIsAlwaysInTheRange) {
  const InputScale positive = input_scale_of(kAsymmetric, 2, 4), negative = input_scale_of(kAsymmetric, -4, -2);
  EXPECT_DOUBLE_EQ(positive.scale, 4.0 / 255);
  EXPECT_DOUBLE_EQ(positive.zero_point, -128);
  EXPECT_DOUBLE_EQ(negative.scale, 4.0 / 255);
  EXPECT_DOUBLE_EQ(negative.zero_point, 127);
}

TEST(StaticInputs, AnEmptyRangeGivesTheSmallestStep) {
  QuantizedWeight weight;
  set_input_scale(kAsymmetric, input_scale_of(kAsymmetric, 0, 0), at::kBFloat16, weight);
  EXPECT_EQ(weight.input_scale.scalar_type(), at::kBFloat16);
  EXPECT_EQ(weight.input_scale.item<double>(), 0.0078125);
  EXPECT_EQ(weight.input_zero_point.item<int>(), 0);
}

TEST(StaticInputs, LayoutAndTensorsAgree) {
  QuantizationScheme scheme;
  scheme.weights = QuantizationArgs{};
  for (const QuantizationArgs& inputs : {kFp8, kInt8, kAsymmetric}) {
    scheme.input_activations = inputs;
    QuantizedWeight weight;
    EXPECT_THROW(input_tensors(scheme, weight), InternalError);
    set_input_scale(inputs, input_scale_of(inputs, -1, 2), at::kHalf, weight);
    const std::vector<NamedTensorSpec> specs = input_layout(scheme, at::kHalf);
    const std::vector<NamedTensor> tensors = input_tensors(scheme, weight);
    ASSERT_EQ(specs.size(), tensors.size());
    for (std::size_t i = 0; i < specs.size(); ++i) {
      EXPECT_EQ(specs[i].suffix, tensors[i].suffix);
      EXPECT_EQ(specs[i].dtype, tensors[i].tensor.scalar_type());
      EXPECT_EQ(c10::IntArrayRef(specs[i].shape), tensors[i].tensor.sizes());
    }
  }
  scheme.input_activations->dynamic = Dynamic::kTrue;
  EXPECT_TRUE(input_layout(scheme, at::kHalf).empty());
}

TEST(StaticInputs, ErrorsAreThoseOfRoundedValues) {
  at::manual_seed(1);
  const at::Tensor x = at::randn({300, 20}) + 0.3;
  const double least = -2, greatest = 2.5, scale = 4.5 / 255, zero = -15;  // round(-128 + 2 / scale)
  const at::Tensor q = (x / scale + zero).clamp(-128, 127).round();
  const double expected = ((q - zero) * scale - x).abs().pow(2.4).sum().item<double>();
  EXPECT_NEAR(input_error(x, kAsymmetric, least, greatest, 2.4), expected, 1e-4 * expected);
  const double fine = input_error(x, kFp8, -4, 4, 2), coarse = input_error(x, kFp8, -1, 1, 2);
  EXPECT_LT(fine, 0.01 * coarse);  // what is cut off weighs more
}

TEST(StaticInputs, ObserversOfInputs) {
  EXPECT_EQ(parse_input_observer("Static-MinMax", Json::object(), "test").observer, InputObserver::kRange);
  EXPECT_EQ(parse_input_observer("minmax", {{"averaging_constant", 0.5}}, "test").averaging_constant, 0.5);
  EXPECT_EQ(parse_input_observer("mse", {{"patience", 3}}, "test").search.patience, 3);
  for (const char* name : {"memoryless_minmax", "hessian", "imatrix"})
    EXPECT_THROW(parse_input_observer(name, Json::object(), "test"), RecipeError) << name;
  for (const Json& share : {Json(0), Json(1.5), Json("a")})
    EXPECT_THROW(parse_input_observer("minmax", {{"averaging_constant", share}}, "test"), RecipeError);
  EXPECT_THROW(parse_input_observer("minmax", {{"patience", 3}}, "test"), RecipeError);
}

}  // namespace
}  // namespace layerpress::quant
