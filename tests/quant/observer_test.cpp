// Ranges that observers choose for NVFP4's groups.
#include "layerpress/quant/rounding/observer.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "layerpress/quant/weight_numbers.h"

namespace layerpress::quant {
namespace {

const QuantizationArgs kNvfp4 = *preset_scheme("NVFP4A16").weights;

/// The sum of the squared errors of a weight that is rounded to nearest with the observer's scales.
double error_with(const char* observer, const at::Tensor& weight) {
  const ObserverSettings settings = parse_observer(observer, Json::object(), "test");
  const kernels::ScaleFormat stored =
      scale_format(kNvfp4, at::kFloat, magnitude_for_global_scale(weight, kNvfp4, settings));
  const kernels::ChosenScales scales =
      choose_scales(weight, kNvfp4, settings, stored, at::ones({weight.size(1)}, at::kFloat));
  const kernels::ScaleGrid grid = scale_grid(kNvfp4, weight.size(0), weight.size(1));
  QuantizationScheme scheme = preset_scheme("NVFP4A16");
  const QuantizedWeight quantized =
      to_quantized_weight(kNvfp4, kernels::round_to_nearest(weight, grid, element_of(kNvfp4), scales), scales, stored);
  return (dequantize(scheme, quantized, at::kFloat) - weight).square().sum().item<double>();
}

TEST(Observer, WiderRangesOfFp4) {
  // With 4 as the greatest level, all values are levels; with 6, 3 and 2 fall between two.
  const at::Tensor group = at::tensor({4.0F, 3.0F, 2.0F, 1.0F, 0.5F, -4.0F, -3.0F, -2.0F}).repeat({2}).view({1, 16});
  const at::Tensor weight = at::cat({group, 2 * group, group / 4});
  EXPECT_GT(error_with("minmax", weight), 0.5);
  EXPECT_LT(error_with("hessian", weight), 0.02 * error_with("minmax", weight));
  EXPECT_LT(error_with("nvfp4_expanded_mse", weight), 0.02 * error_with("minmax", weight));
}

TEST(Observer, HessianIsReadAsItIsWritten) {
  for (const char* preset : {"W4A16", "FP8_DYNAMIC", "NVFP4A16", "MXFP4A16"}) {
    QuantizationArgs weights = *preset_scheme(preset).weights;
    weights.observer = "hessian";
    const QuantizationArgs written = with_portable_observer(weights);
    EXPECT_EQ(*written.observer, "imatrix_mse") << preset;
    EXPECT_EQ(observer_of_weights(written, "test").observer, Observer::kHessian) << preset;
    EXPECT_EQ(observer_of_weights(written, "test").signed_scales, false) << preset;
    QuantizationArgs other = written;
    other.observer_kwargs["grid"] = 20;
    EXPECT_EQ(observer_of_weights(other, "test").observer, Observer::kImportance) << preset;
  }
}

TEST(Observer, FullRangeIsWrittenAndRead) {
  QuantizationScheme scheme = preset_scheme("W4A16");
  scheme.weights->observer = "hessian";
  ObserverSettings settings = observer_of_weights(*scheme.weights, "test");
  settle_signed_scales(scheme, settings, "test");
  EXPECT_EQ(settings.signed_scales, true);
  const QuantizationArgs written = with_portable_observer(*scheme.weights);
  EXPECT_EQ(written.observer_kwargs["full_range"], true);
  EXPECT_EQ(observer_of_weights(written, "test").observer, Observer::kHessian);
  EXPECT_EQ(observer_of_weights(written, "test").signed_scales, true);

  QuantizationScheme without = preset_scheme("W4A16");
  without.weights->observer = "hessian", without.weights->observer_kwargs = {{"full_range", false}};
  settings = observer_of_weights(*without.weights, "test");
  settle_signed_scales(without, settings, "test");
  EXPECT_EQ(settings.signed_scales, false);

  QuantizationScheme asymmetric = preset_scheme("W4A16_ASYM");
  settings = parse_observer("hessian", {{"full_range", true}}, "test");
  EXPECT_THROW(settle_signed_scales(asymmetric, settings, "test"), RecipeError);
  EXPECT_THROW(parse_observer("mse", {{"full_range", true}}, "test"), RecipeError);
}

TEST(Observer, OnlyWeightsOfWeightOnlySchemesGetSignedScales) {
  for (const char* preset : {"W4A16", "W4A16_ASYM", "W8A16", "W4AFP8", "W4A8", "NVFP4A16", "MXFP4A16"})
    for (const Observer observer : {Observer::kSquaredError, Observer::kHessian, Observer::kGptq})
      EXPECT_EQ(has_signed_scales(preset_scheme(preset), observer), preset == std::string("W4A16")) << preset;
  for (const Observer observer : {Observer::kMinMax, Observer::kMse, Observer::kImportance})
    EXPECT_FALSE(has_signed_scales(preset_scheme("W4A16"), observer)) << observer_name(observer);
}

TEST(Observer, SignedScalesLoseLess) {
  at::manual_seed(3);
  const at::Tensor weight = at::randn({64, 256}), ones = at::ones({256});
  for (const int bits : {2, 3, 4}) {
    QuantizationArgs args = *preset_scheme("W4A16").weights;
    args.num_bits = bits, args.group_size = 64;
    const kernels::ScaleFormat stored = scale_format(args, at::kFloat, 1);
    const auto error = [&](bool signed_scales) {
      const ObserverSettings settings{.observer = Observer::kHessian, .signed_scales = signed_scales};
      const kernels::ChosenScales scales = choose_scales(weight, args, settings, stored, ones);
      const at::Tensor codes = kernels::round_to_nearest(weight, scale_grid(args, 64, 256), element_of(args), scales);
      const at::Tensor wide = kernels::spread_blocks(scales.scale, scale_grid(args, 64, 256), 64, 256);
      return (codes.to(at::kFloat) * wide - weight).square().sum().item<double>();
    };
    EXPECT_LT(error(true), 0.93 * error(false)) << bits;
  }
}

TEST(Observer, TheGreatestGroupHasRoomForAWiderRange) {
  const at::Tensor weight = at::tensor({-3.0F, 2.0F}).repeat({8}).view({1, 16});
  EXPECT_DOUBLE_EQ(magnitude_for_global_scale(weight, kNvfp4, {.observer = Observer::kMinMax}), 3);
  EXPECT_DOUBLE_EQ(magnitude_for_global_scale(weight, kNvfp4, {.observer = Observer::kHessian}), 4.5);
}

}  // namespace
}  // namespace layerpress::quant
