#include "layerpress/kernels/numbers/number_formats.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "layerpress/kernels/cuda/conversions.h"
#include "layerpress/kernels/numbers/element_levels.h"
#include "layerpress/kernels/numbers/scale_rounding.h"
#include "layerpress/kernels/scales/scale_search.h"
#include "tests/kernels/instruction_sets.h"

namespace layerpress::kernels {
namespace {

/// Values around every place where rounding changes its mind, beyond the limits and near zero.
at::Tensor awkward_values(const ElementType& element) {
  at::manual_seed(31);
  const at::Tensor codes = element.element == Element::kInteger ? at::arange(-128, 128, at::kChar)
                           : element.element == Element::kE2m1  ? at::arange(0, 16, at::kChar)
                                                                : at::arange(0, 0x7F, at::kChar);
  const at::Tensor values = std::get<0>(code_levels(codes, element).sort());
  const at::Tensor middles = (values.slice(0, 1) + values.slice(0, 0, -1)) / 2;
  const at::Tensor near = at::cat({values, middles});
  const at::Tensor all = at::cat({near, near * (1 + 1e-6), near * (1 - 1e-6), at::randn({500}) * element.maximum,
                                  at::randn({200}) * 1e-3, at::tensor({0.0f, -0.0f, 1e9f, 1e-38f})});
  return at::cat({all, -all}).contiguous();
}

const ElementType kElements[] = {integers(2), integers(4), integers(8), kE4m3, kE2m1};

TEST(Elements, EveryInstructionSetRoundsAsAtenDoes) {
  for (const ElementType& element : kElements) {
    const at::Tensor x = awkward_values(element), one = at::ones({1});
    const cpu::RowScales row{x.numel(), x.numel(), one.const_data_ptr<float>()};
    const at::Tensor levels = nearest_level(x, one, {}, element);
    for (const cpu::Table* table : available_tables()) {
      at::Tensor codes = at::empty({x.numel()}, at::kChar);
      table->quantize(x.const_data_ptr<float>(), row, element, codes.data_ptr<std::int8_t>());
      EXPECT_TRUE(at::equal(code_levels(codes, element), levels)) << table->name << element.maximum;
      at::Tensor values = at::empty({x.numel()});
      table->dequantize_f32(codes.const_data_ptr<std::int8_t>(), row, element, values.data_ptr<float>());
      EXPECT_TRUE(at::equal(values, levels)) << table->name << element.maximum;
    }
  }
}

TEST(Elements, DevicesRoundAsAtenDoes) {
  for (const ElementType& element : kElements) {
    const at::Tensor x = awkward_values(element);
    const at::Tensor levels = nearest_level(x, at::ones({1}), {}, element);
    with_levels<cuda::LaneOperations>(element, [&](const auto& lanes) {
      for (std::int64_t i = 0; i < x.numel(); ++i) {
        const float level = lanes.level(x[i].item<float>(), 0);
        ASSERT_EQ(level, levels[i].item<float>()) << x[i].item<float>() << " of " << element.maximum;
        ASSERT_EQ(lanes.decode(lanes.encode(level)), level);
      }
    });
  }
}

TEST(Elements, FloatCodesAreTheirFormats) {
  const at::Tensor e4m3 = at::arange(0, 256, at::kInt).to(at::kByte).view(at::kChar);
  const at::Tensor numbers = e4m3.masked_select(e4m3.bitwise_and(0x7F).ne(0x7F));
  const at::Tensor values = code_levels(numbers, kE4m3);
  EXPECT_TRUE(at::equal(values, numbers.view(at::kFloat8_e4m3fn).to(at::kFloat)));
  EXPECT_TRUE(at::equal(level_codes(values, kE4m3), numbers));
  const at::Tensor e2m1 = at::arange(0, 16, at::kChar);
  EXPECT_TRUE(at::equal(code_levels(e2m1, kE2m1), at::tensor({0.f, .5f, 1.f, 1.5f, 2.f, 3.f, 4.f, 6.f, -0.f, -.5f, -1.f,
                                                              -1.5f, -2.f, -3.f, -4.f, -6.f})));
  EXPECT_TRUE(at::equal(level_codes(code_levels(e2m1, kE2m1), kE2m1), e2m1));
  with_levels<cuda::LaneOperations>(kE2m1, [&](const auto& lanes) {
    for (std::int8_t code = 0; code < 16; ++code) EXPECT_EQ(lanes.encode(lanes.decode(code)), code);
  });
}

/// The exponents of OCP's MX scales, with a quarter of the leading bit added before the rest is cut off.
TEST(Scales, PowersOfTwo) {
  const auto exponent = [](float range, const ElementType& element) {
    return std::log2(stored_scale({ScaleType::kE8m0}, range, element.symmetric_range()));
  };
  EXPECT_EQ(exponent(6, kE2m1), 0);
  EXPECT_EQ(exponent(6.99f, kE2m1), 0);
  EXPECT_EQ(exponent(7, kE2m1), 1);
  EXPECT_EQ(exponent(4, kE2m1), 0);
  EXPECT_EQ(exponent(3.999f, kE2m1), 0);
  EXPECT_EQ(exponent(3.49f, kE2m1), -1);
  EXPECT_EQ(exponent(447.9f, kE4m3), 0);
  EXPECT_EQ(exponent(448, kE4m3), 1);
  EXPECT_EQ(exponent(0, kE2m1), -127);
  EXPECT_EQ(exponent(1e-38f, kE4m3), -127);
}

TEST(Scales, E4m3IsRoundedBetweenMultiplyingAndDividing) {
  const ScaleFormat format{ScaleType::kE4m3, ScaleType::kBf16, 320};
  // 3.3 / 6 is 0.55078125 in bf16, times 320 176.25, in e4m3 176.
  EXPECT_EQ(stored_scale(format, 3.3f, 6), 176.0f / 320);
  EXPECT_EQ(stored_scale(format, 1000, 6), 448.0f / 320);
  EXPECT_EQ(stored_scale(format, 0, 6), 0.125f / 320);
}

TEST(Scales, TensorsAreRoundedLikeNumbers) {
  at::manual_seed(32);
  const at::Tensor range = at::cat({at::rand({3000}), at::rand({1000}) * 1e-6, at::rand({500}) * 1e4, at::zeros({1})});
  const ScaleFormat formats[] = {{ScaleType::kBf16},
                                 {ScaleType::kHalf},
                                 {ScaleType::kFloat},
                                 {ScaleType::kE8m0},
                                 {ScaleType::kE4m3, ScaleType::kBf16, 2688.0f},
                                 {ScaleType::kE4m3, ScaleType::kFloat, 123.4f}};
  for (const ScaleFormat& format : formats)
    for (const ElementType& element : {integers(4), kE4m3, kE2m1}) {
      const ChosenScales chosen = qparams_of(-range, at::zeros_like(range), 1.0, {element, true}, format);
      for (std::int64_t i = 0; i < range.numel(); ++i)
        ASSERT_EQ(chosen.scale[i].item<float>(),
                  range_parameters(format, element, true, -range[i].item<float>(), 0).scale)
            << static_cast<int>(format.type) << " " << range[i].item<float>();
    }
}

}  // namespace
}  // namespace layerpress::kernels
