// Scales and zero points of inputs against compressed-tensors' formulas.
#include "layerpress/quant/rounding/static_inputs.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "layerpress/base/error.h"
#include "layerpress/quant/rounding/value_parameters.h"

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

/// The range of two channels.
at::Tensor range_of(double least, double greatest) {
  return at::tensor({least, 0.0, 0.0, greatest}, at::kDouble).view({2, 2});
}

TEST(StoredValues, AnEmptyRangeGivesTheSmallestStep) {
  const auto tensors = parameters_of({"input", &kAsymmetric, at::kBFloat16}, range_of(0, 0));
  EXPECT_EQ(tensors[0].tensor.scalar_type(), at::kBFloat16);
  EXPECT_EQ(tensors[0].tensor.item<double>(), 0.0078125);
  EXPECT_EQ(tensors[1].tensor.item<int>(), 0);
}

TEST(StoredValues, LayoutAndTensorsAgree) {
  QuantizationArgs local = kFp8, by_head = kFp8;
  local.num_bits = 4, local.strategy = Strategy::kTensorGroup, local.group_size = 16, local.dynamic = Dynamic::kLocal;
  by_head.strategy = Strategy::kAttentionHead;
  for (const QuantizationArgs& args : {kFp8, kInt8, kAsymmetric, local, by_head}) {
    const StoredValue value{"k", &args, at::kHalf, 2};
    const std::vector<NamedTensorSpec> specs = parameter_layout(value);
    const std::vector<NamedTensor> tensors = parameters_of(value, range_of(-1, 2));
    ASSERT_EQ(specs.size(), tensors.size());
    for (std::size_t i = 0; i < specs.size(); ++i) {
      EXPECT_TRUE(specs[i].suffix.starts_with("k_"));
      EXPECT_EQ(specs[i].suffix, tensors[i].suffix);
      EXPECT_EQ(specs[i].dtype, tensors[i].tensor.scalar_type());
      EXPECT_EQ(c10::IntArrayRef(specs[i].shape), tensors[i].tensor.sizes());
    }
  }
}

TEST(StoredValues, AGlobalScaleIsADivisor) {
  QuantizationArgs args = kFp8;
  args.num_bits = 4, args.strategy = Strategy::kTensorGroup, args.group_size = 16, args.dynamic = Dynamic::kLocal;
  const auto tensors = parameters_of({"input", &args, at::kFloat}, range_of(-4, 2));
  ASSERT_EQ(tensors.size(), 1U);
  EXPECT_EQ(tensors[0].suffix, "input_global_scale");
  EXPECT_FLOAT_EQ(tensors[0].tensor.item<float>(), 448 * 6 / 4.0F);
}

TEST(StoredValues, HeadsHaveScalesOfTheirOwn) {
  QuantizationArgs args = kFp8;
  args.strategy = Strategy::kAttentionHead;
  const at::Tensor range = at::tensor({-1.0, -8.0, -2.0, 0.0, 3.0, 1.0, 1.0, 4.0}, at::kDouble).view({2, 4});
  const auto tensors = parameters_of({"v", &args, at::kFloat, 2}, range);
  EXPECT_EQ(tensors[0].suffix, "v_scale");
  EXPECT_FLOAT_EQ(tensors[0].tensor[0].item<float>(), 8.0F / 448);
  EXPECT_FLOAT_EQ(tensors[0].tensor[1].item<float>(), 4.0F / 448);
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
