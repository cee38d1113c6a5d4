#include "layerpress/kernels/solver/scaled_columns.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "layerpress/kernels/scales/dequantize.h"
#include "tests/kernels/instruction_sets.h"

namespace layerpress::kernels {
namespace {

struct RoundingCase {
  const char* name;
  at::ScalarType dtype;
  WeightNumbers numbers;
};

constexpr ScaleFormat kGlobal{ScaleType::kE4m3, ScaleType::kBf16, 320};

class ScaledColumnsTest : public ::testing::TestWithParam<RoundingCase> {};

/// Weights of different sizes with a group of zeros, and factors of both sides of 1.
std::pair<at::Tensor, at::Tensor> problem(at::ScalarType dtype) {
  at::manual_seed(5);
  at::Tensor weight = at::randn({37, 200}) * at::exp(at::randn({37, 1}));
  weight.narrow(0, 3, 1).zero_();
  return {weight.to(dtype), at::exp(at::randn({200}))};
}

TEST_P(ScaledColumnsTest, OnePassEqualsItsSteps) {
  const RoundingCase& c = GetParam();
  const auto [weight, factors] = problem(c.dtype);
  const at::Tensor scaled = scaled_columns(weight, factors);
  EXPECT_TRUE(at::equal(scaled, (weight.to(at::kFloat) * factors).to(c.dtype)));
  const ChosenScales scales = search_scales(scaled, c.numbers.grid, c.numbers.rule, {}, c.numbers.stored, {});
  const at::Tensor codes = round_to_nearest(scaled, c.numbers.grid, c.numbers.rule.element, scales);
  const at::Tensor rounded = dequantize(codes, c.numbers.grid, c.numbers.rule.element, scales, c.dtype);
  const at::Tensor expected = scaled_columns(rounded, at::reciprocal(factors));
  const at::Tensor found = rounded_scaled_columns(weight, factors, c.numbers);
  EXPECT_TRUE(at::equal(found, expected));
  EXPECT_FALSE(at::equal(found, weight));
  EXPECT_EQ(found.scalar_type(), c.dtype);
}

INSTANTIATE_TEST_SUITE_P(
    Cases, ScaledColumnsTest,
    ::testing::Values(RoundingCase{"bf16_groups", at::kBFloat16, {{1, 64}, {integers(4), false}, {ScaleType::kBf16}}},
                      RoundingCase{"bf16_symmetric", at::kBFloat16, {{1, 40}, {integers(4), true}, {ScaleType::kBf16}}},
                      RoundingCase{"bf16_channels", at::kBFloat16, {{1, 200}, {integers(8), true}, {ScaleType::kBf16}}},
                      RoundingCase{"half_groups", at::kHalf, {{1, 50}, {integers(3), false}, {ScaleType::kHalf}}},
                      RoundingCase{"float_groups", at::kFloat, {{1, 64}, {integers(4), false}, {ScaleType::kFloat}}},
                      RoundingCase{"fp8_channels", at::kBFloat16, {{1, 200}, {kE4m3, true}, {ScaleType::kBf16}}},
                      RoundingCase{"nvfp4", at::kBFloat16, {{1, 16}, {kE2m1, true}, kGlobal}},
                      RoundingCase{"mxfp4", at::kFloat, {{1, 32}, {kE2m1, true}, {ScaleType::kE8m0}}}),
    [](const auto& info) { return info.param.name; });

TEST(ScaledColumns, InstructionSetsGiveTheSameBits) {
  constexpr cpu::ValueType kTypes[] = {cpu::ValueType::kBFloat16, cpu::ValueType::kHalf, cpu::ValueType::kFloat};
  constexpr at::ScalarType kDtypes[] = {at::kBFloat16, at::kHalf, at::kFloat};
  for (const std::size_t t : {0u, 1u, 2u}) {
    const auto [weight, factors] = problem(kDtypes[t]);
    const at::Tensor expected = (weight.narrow(0, 0, 1).to(at::kFloat) * factors).to(kDtypes[t]).flatten();
    for (const cpu::Table* table : available_tables()) {
      at::Tensor wide = at::empty({200}), narrow = at::empty({200}, kDtypes[t]);
      const float* own = factors.const_data_ptr<float>();
      table->scale_columns(weight.const_data_ptr(), kTypes[t], own, 200, wide.data_ptr(), cpu::ValueType::kFloat);
      table->scale_columns(weight.const_data_ptr(), kTypes[t], own, 200, narrow.data_ptr(), kTypes[t]);
      EXPECT_TRUE(at::equal(narrow, expected)) << table->name;
      EXPECT_TRUE(at::equal(wide, expected.to(at::kFloat))) << table->name;
    }
  }
}

}  // namespace
}  // namespace layerpress::kernels
