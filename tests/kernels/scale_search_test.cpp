#include "layerpress/kernels/scales/scale_search.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "layerpress/kernels/scales/levels.h"
#include "tests/kernels/instruction_sets.h"

namespace layerpress::kernels {
namespace {

const ScaleFormat kBf16{ScaleType::kBf16}, kFloat{ScaleType::kFloat};

struct SearchCase {
  const char* name;
  ScaleGrid grid;
  RangeRule rule;
  double exponent;
  int patience;
  bool important;
};

std::vector<double> shrinking() {
  std::vector<double> factors;
  for (int i = 0; i < 20; ++i) factors.push_back(1 - 0.01 * i);
  return factors;
}

double total_error(const at::Tensor& weight, const SearchCase& c, const ChosenScales& chosen,
                   const at::Tensor& importance) {
  const at::Tensor scale = spread_blocks(chosen.scale, c.grid, weight.size(0), weight.size(1));
  const at::Tensor zero = chosen.zero_point.defined()
                              ? spread_blocks(chosen.zero_point, c.grid, weight.size(0), weight.size(1))
                              : at::Tensor();
  const at::Tensor level = nearest_level(weight, scale, zero, c.rule.element);
  at::Tensor error = (level_value(level, scale, zero) - weight).abs().pow(c.exponent);
  if (importance.defined()) error = error * importance;
  return error.sum().item<double>();
}

class ScaleSearchTest : public ::testing::TestWithParam<SearchCase> {};

TEST_P(ScaleSearchTest, FusedChoosesAsWellAsThePlainSearch) {
  at::manual_seed(11);
  const SearchCase& c = GetParam();
  const at::Tensor weight = at::randn({70, 192}).to(at::kBFloat16);
  const at::Tensor importance = c.important ? at::rand({192}) + 0.01 : at::Tensor();
  const ScaleSearch search{shrinking(), c.exponent, c.patience};
  const ChosenScales fused = search_scales(weight, c.grid, c.rule, search, kBf16, importance);
  const ChosenScales reference = plain_search_scales(weight, c.grid, c.rule, search, kBf16, importance);
  const at::Tensor wide = weight.to(at::kFloat);
  EXPECT_NEAR(total_error(wide, c, fused, importance) / total_error(wide, c, reference, importance), 1.0, 2e-3);
  EXPECT_TRUE(at::equal(fused.scale, fused.scale.to(at::kBFloat16).to(at::kFloat)));

  const ChosenScales plain = search_scales(weight, c.grid, c.rule, {}, kBf16, importance);
  EXPECT_LE(total_error(wide, c, fused, importance), total_error(wide, c, plain, importance));
  const ChosenScales with_plain = plain_search_scales(weight, c.grid, c.rule, {}, kBf16, importance);
  EXPECT_TRUE(at::equal(plain.scale, with_plain.scale));
  EXPECT_TRUE(at::equal(
      round_to_nearest(weight, c.grid, c.rule.element, plain),
      level_codes(
          nearest_level(wide, spread_blocks(plain.scale, c.grid, 70, 192),
                        plain.zero_point.defined() ? spread_blocks(plain.zero_point, c.grid, 70, 192) : at::Tensor(),
                        c.rule.element),
          c.rule.element)));
}

INSTANTIATE_TEST_SUITE_P(Cases, ScaleSearchTest,
                         ::testing::Values(SearchCase{"group", {1, 64}, {{}, true}, 2.4, 0, false},
                                           SearchCase{"patience", {1, 64}, {{}, true}, 2.4, 5, false},
                                           SearchCase{"important", {1, 32}, {{}, true}, 2, 0, true},
                                           SearchCase{"asymmetric", {1, 64}, {{}, false}, 2, 0, true},
                                           SearchCase{"signed", {1, 64}, {{}, true, true}, 2, 0, true},
                                           SearchCase{
                                               "signed_two_bits", {1, 64}, {integers(2), true, true}, 2, 0, false},
                                           SearchCase{"eight_bits", {1, 192}, {integers(8), true}, 2.4, 0, false},
                                           SearchCase{"tensor", {70, 192}, {{}, true}, 2, 0, false},
                                           SearchCase{"fp8_channel", {1, 192}, {kE4m3, true}, 2, 0, false},
                                           SearchCase{"fp8_block", {32, 128}, {kE4m3, true}, 2.4, 0, false}),
                         [](const auto& info) { return info.param.name; });

TEST(ScaleSearch, BlocksLargerThanACacheAreSearchedInStrips) {
  at::manual_seed(13);
  constexpr std::int64_t kRows = 300, kColumns = 1000;
  const at::Tensor weight = at::randn({kRows, kColumns}).mul_(at::rand({kRows, 1}));
  const at::Tensor importance = at::rand({kColumns}) + 0.01;
  for (const ScaleGrid& grid : {ScaleGrid{kRows, kColumns}, ScaleGrid{270, 128}, ScaleGrid{10000, 700}})
    for (const bool symmetric : {true, false})
      for (const int patience : {0, 3}) {
        const SearchCase c{"strips", grid, {{}, symmetric}, 2, patience, true};
        const ScaleSearch search{{1, 0.98, 0.95, 0.9, 0.85, 0.8}, c.exponent, patience};
        const ChosenScales strips = search_scales(weight, grid, c.rule, search, kBf16, importance);
        const ChosenScales reference = plain_search_scales(weight, grid, c.rule, search, kBf16, importance);
        EXPECT_NEAR(total_error(weight, c, strips, importance) / total_error(weight, c, reference, importance), 1, 1e-4)
            << grid.block_rows << " rows, patience " << patience;
        const ChosenScales plain = search_scales(weight, grid, c.rule, {}, kBf16, {});
        EXPECT_TRUE(at::equal(plain.scale, plain_search_scales(weight, grid, c.rule, {}, kBf16, {}).scale));
      }
}

/// Patience as it is told: candidates one by one, until so many in a row were best for no block.
at::Tensor scales_within_patience(const at::Tensor& weight, const ScaleGrid& grid, int patience) {
  at::Tensor best, least;
  int idle = 0;
  for (const double shrink : shrinking()) {
    const ChosenScales chosen = search_scales(weight, grid, {}, {.shrink = {shrink}}, kFloat, {});
    const at::Tensor scale = spread_blocks(chosen.scale, grid, weight.size(0), weight.size(1)).to(at::kDouble);
    const at::Tensor level = (weight.to(at::kDouble) / scale).clamp(-8, 7).round();
    const at::Tensor error = (level * scale - weight).pow(2).view({weight.size(0), -1, grid.block_columns}).sum(2);
    const at::Tensor better = best.defined() ? error < least : at::ones_like(error, at::kBool);
    idle = better.any().item<bool>() ? 0 : idle + 1;
    if (idle == patience) break;
    best = best.defined() ? at::where(better, chosen.scale, best) : chosen.scale;
    least = least.defined() ? at::where(better, error, least) : error;
  }
  return best;
}

TEST(ScaleSearch, PatienceIsTheWholeWeightS) {
  at::manual_seed(14);
  const ScaleGrid grid{1, 64};
  int differing = 0;
  for (const std::int64_t rows : {1, 3, 8, 64})
    for (const int patience : {1, 2, 5, 19, 100}) {
      const at::Tensor weight = at::randn({rows, 128});
      const ScaleSearch search{shrinking(), 2, patience};
      const at::Tensor expected = scales_within_patience(weight, grid, patience);
      const auto equal = [&](const ChosenScales& found) {
        return found.scale.eq(expected).to(at::kDouble).mean().item<double>();
      };
      EXPECT_EQ(equal(search_scales(weight, grid, {}, search, kFloat, {})), 1.0) << rows << ", " << patience;
      EXPECT_EQ(equal(plain_search_scales(weight, grid, {}, search, kFloat, {})), 1.0) << rows;
      differing += equal(search_scales(weight, grid, {}, {shrinking(), 2, 0}, kFloat, {})) < 1 ? 1 : 0;
    }
  EXPECT_GE(differing, 3);  // patience matters at all
}

TEST(ScaleSearch, PatienceOfRowsIsThatOfTheirWeight) {
  at::manual_seed(15);
  int differing = 0;
  for (const int patience : {1, 2, 3}) {
    const at::Tensor weight = at::randn({6, 64});
    const ScaleSearch search{shrinking(), 2.4, patience};
    const ChosenScales whole = search_scales(weight, {1, 64}, {}, search, kFloat, {});
    for (std::int64_t row = 0; row < 6; ++row) {
      std::vector<OtherRows> others;
      for (std::int64_t other = 0; other < 6; ++other)
        if (other != row) others.emplace_back([&, other] { return weight.narrow(0, other, 1); });
      const at::Tensor own = weight.narrow(0, row, 1);
      const at::Tensor expected = whole.scale.narrow(0, row, 1);
      EXPECT_TRUE(at::equal(search_scales(own, {1, 64}, {}, search, kFloat, {}, others).scale, expected));
      EXPECT_TRUE(at::equal(plain_search_scales(own, {1, 64}, {}, search, kFloat, {}, others).scale, expected));
      differing += at::equal(search_scales(own, {1, 64}, {}, search, kFloat, {}).scale, expected) ? 0 : 1;
    }
  }
  EXPECT_GE(differing, 1);  // the others matter at all
}

TEST(ScaleSearch, RangesBecomeScalesInTheStoredDtype) {
  at::manual_seed(16);
  for (const at::ScalarType stored : {at::kBFloat16, at::kHalf, at::kFloat})
    for (const int bits : {4, 8}) {
      const ElementType element = integers(bits);
      const double low = element.minimum, high = element.maximum;
      const at::Tensor minimum = -at::rand({2000}).to(stored), maximum = at::rand({2000}).to(stored);
      // compressed-tensors' operations, on tensors of that dtype.
      const at::Tensor scale = (maximum - minimum) / at::full({}, high - low, stored);
      const at::Tensor zero_point = (at::full({}, low, stored) - minimum / scale).clamp(low, high).round();
      const at::Tensor least = minimum.to(at::kFloat), most = maximum.to(at::kFloat);
      const ChosenScales found = qparams_of(least, most, 1, {element, false}, scales_of_dtype(stored));
      EXPECT_TRUE(at::equal(found.scale, scale.to(at::kFloat)));
      EXPECT_TRUE(at::equal(found.zero_point, zero_point.to(at::kFloat)));
      for (std::int64_t i = 0; i < 2000; ++i) {
        const Qparams one = qparams_of(Range{least[i].item<float>(), most[i].item<float>()}, 1, {element, false},
                                       scales_of_dtype(stored));
        ASSERT_EQ(one.scale, found.scale[i].item<float>());
        ASSERT_EQ(one.zero_point, found.zero_point[i].item<float>());
      }
    }
}

TEST(ScaleSearch, WiderRangesAreRoundedBeforeTheyShrink) {
  at::manual_seed(17);
  const at::Tensor weight = at::randn({24, 96}).to(at::kBFloat16);
  const float expand = 1.3f;
  for (const bool symmetric : {true, false})
    for (const ScaleGrid& grid : {ScaleGrid{1, 32}, ScaleGrid{1, 96}, ScaleGrid{24, 96}}) {
      const RangeRule rule{{}, symmetric};
      const ScaleSearch search{.shrink = {0.9}, .expand = expand};
      const ChosenScales chosen = search_scales(weight, grid, rule, search, kBf16, {});
      Range first;
      for (std::int64_t r = 0; r < grid.block_rows; ++r)
        for (std::int64_t c = 0; c < grid.block_columns; ++c) first.extend(weight[r][c].item<float>());
      const auto wider = [&](float end) { return at::tensor(end * expand).to(at::kBFloat16).item<float>(); };
      const Qparams expected = qparams_of({wider(first.minimum), wider(first.maximum)}, 0.9, rule, kBf16);
      EXPECT_EQ(chosen.scale[0][0].item<float>(), expected.scale);
      if (!symmetric) {
        EXPECT_EQ(chosen.zero_point[0][0].item<float>(), expected.zero_point);
      }
      const ChosenScales reference = plain_search_scales(weight, grid, rule, search, kBf16, {});
      EXPECT_TRUE(at::equal(chosen.scale, reference.scale));
    }
}

TEST(ScaleSearch, ZeroBlocksGetTheSmallestScale) {
  at::Tensor weight = at::zeros({2, 64});
  weight[1][3] = 1;
  const ChosenScales chosen = search_scales(weight, {1, 64}, {}, {}, kBf16, {});
  EXPECT_EQ(chosen.scale[0][0].item<float>(), 0.0078125f);
  EXPECT_FLOAT_EQ(chosen.scale[1][0].item<float>(), at::BFloat16(1 / 7.5f));
  const RangeRule asymmetric{.element = {}, .symmetric = false};
  for (const ChosenScales& found : {search_scales(weight, {1, 64}, asymmetric, {}, {ScaleType::kHalf}, {}),
                                    plain_search_scales(weight, {1, 64}, asymmetric, {}, {ScaleType::kHalf}, {})}) {
    EXPECT_EQ(found.scale[0][0].item<float>(), 9.765625e-4f);
    EXPECT_EQ(found.zero_point[0][0].item<float>(), 0);
    EXPECT_EQ(found.zero_point[1][0].item<float>(), -8);
  }
}

TEST(ScaleSearch, HandExamples) {
  // From the format's description: scale 0.1, codes -8 -5 -2 0 2 5 6 7.
  const at::Tensor weight = at::tensor({-.75f, -.5f, -.25f, 0.f, .25f, .5f, .625f, .7f}).view({1, 8});
  const ChosenScales chosen = search_scales(weight, {1, 8}, {}, {}, kFloat, {});
  EXPECT_FLOAT_EQ(chosen.scale[0][0].item<float>(), 0.1f);
  const at::Tensor codes = round_to_nearest(weight, {1, 8}, {}, chosen);
  EXPECT_TRUE(at::equal(codes, at::tensor({-8, -5, -2, 0, 2, 5, 6, 7}, at::kChar).view({1, 8}))) << codes;
}

TEST(ScaleSearch, SignedScalesGiveTheGreatestMagnitudeTheCodeOfWhichThereIsOneMore) {
  const RangeRule rule{.element = {}, .signed_scale = true};
  const at::Tensor weight = at::tensor({.75f, .5f, .25f, 0.f, -.25f, -.5f, -.625f, -.7f}).view({1, 8});
  for (const at::Tensor& own : {weight, at::Tensor(-weight)}) {
    const ChosenScales chosen = search_scales(own, {1, 8}, rule, {}, kFloat, {});
    EXPECT_FLOAT_EQ(chosen.scale[0][0].item<float>(), own[0][0].item<float>() > 0 ? -0.1f : 0.1f);
    const at::Tensor codes = round_to_nearest(own, {1, 8}, {}, chosen);
    EXPECT_TRUE(at::equal(codes, at::tensor({-8, -5, -2, 0, 2, 5, 6, 7}, at::kChar).view({1, 8}))) << codes;
  }
  at::manual_seed(18);
  const at::Tensor random = at::randn({256, 64});
  for (const int bits : {2, 3, 4}) {
    const SearchCase positive{"", {1, 64}, {integers(bits), true}, 2, 0, false};
    SearchCase both = positive;
    both.rule.signed_scale = true;
    const auto error = [&](const SearchCase& c) {
      return total_error(random, c, search_scales(random, c.grid, c.rule, {shrinking()}, kFloat, {}), {});
    };
    EXPECT_LT(error(both), 0.95 * error(positive)) << bits;
  }
}

TEST(CpuKernels, EveryInstructionSetGivesTheSameCodes) {
  at::manual_seed(12);
  const at::Tensor x = at::randn({1000}) * 5, scales = at::rand({63}) + 0.2, zero_points = at::randint(-3, 4, {63});
  for (const ElementType& element : {integers(4), kE4m3, kE2m1})
    for (const std::int64_t group : {16, 48, 1000}) {
      const bool has_zero_points = element.maximum == 7;
      const at::Tensor zeros = has_zero_points ? zero_points.to(at::kFloat) : at::zeros({63});
      const cpu::RowScales row{1000, group, scales.const_data_ptr<float>(),
                               has_zero_points ? zeros.const_data_ptr<float>() : nullptr};
      const at::Tensor place = at::arange(1000).floor_divide(group);
      const at::Tensor scale = scales.index({place}), zero = zeros.index({place});
      const at::Tensor expected = nearest_level(x, scale, has_zero_points ? zero : at::Tensor(), element);
      for (const cpu::Table* table : available_tables()) {
        at::Tensor codes = at::empty({1000}, at::kChar), values = at::empty({1000});
        table->quantize(x.const_data_ptr<float>(), row, element, codes.data_ptr<std::int8_t>());
        EXPECT_TRUE(at::equal(code_levels(codes, element), expected)) << table->name << element.maximum << group;
        table->dequantize_f32(codes.const_data_ptr<std::int8_t>(), row, element, values.data_ptr<float>());
        EXPECT_TRUE(at::equal(values, (expected - zero) * scale)) << table->name << element.maximum << group;
      }
    }
}

TEST(CpuKernels, Fp8CodesEqualAtens) {
  const at::Tensor x =
      at::cat({at::randn({2000}) * 100, at::randn({500}) * 1e-3, at::tensor({448.f, -460.f, 0.f, 17.f})});
  const at::Tensor expected = x.clamp(-448, 448).to(at::kFloat8_e4m3fn).view(at::kChar);
  at::Tensor codes = at::empty({x.numel()}, at::kChar);
  const float scale = 1;
  cpu::table().quantize(x.const_data_ptr<float>(), {x.numel(), x.numel(), &scale}, kE4m3,
                        codes.data_ptr<std::int8_t>());
  // Negative zero and zero are the same value.
  const auto value = [](const at::Tensor& c) { return c.view(at::kFloat8_e4m3fn).to(at::kFloat); };
  EXPECT_TRUE(at::equal(value(codes), value(expected)));
}

TEST(ScaleSearch, OtherDevicesTakeManyRowsAtOnceButNotAll) {
  at::manual_seed(11);
  const at::Tensor weight = at::randn({1100, 8192});  // more elements than go at once
  const ScaleGrid grid{4, 512};
  const RangeRule rule{.element = {}, .symmetric = false};
  const ScaleSearch search{.shrink = {1.0, 0.8}};
  const ChosenScales all = plain_search_scales(weight, grid, rule, search, kBf16, {});
  const ChosenScales expected = search_scales(weight, grid, rule, search, kBf16, {});
  EXPECT_EQ(all.scale.sizes(), expected.scale.sizes());
  EXPECT_GT(all.scale.eq(expected.scale).to(at::kDouble).mean().item<double>(), 0.999);
  EXPECT_GT(all.zero_point.eq(expected.zero_point).to(at::kDouble).mean().item<double>(), 0.999);
  EXPECT_TRUE(at::equal(plain_round_to_nearest(weight, grid, rule.element, expected),
                        round_to_nearest(weight, grid, rule.element, expected)));
}

}  // namespace
}  // namespace layerpress::kernels
