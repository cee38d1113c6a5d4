#include "layerpress/kernels/scales/row_search.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "layerpress/kernels/numbers/scale_rounding.h"
#include "tests/kernels/host_search.h"

// The lines that a device runs, on the host.
namespace layerpress::kernels {
namespace {

void search_on_host(const cuda::ScaleSearchTask& task) {
  task.number == cuda::Number::kBf16 ? test::search_blocks_on_host<cuda::Bf16>(task)
                                     : test::search_blocks_on_host<float>(task);
}

struct RowSearchCase {
  const char* name;
  std::int64_t block_columns;
  RangeRule rule;
  double exponent;
  int patience;
  bool important;
  at::ScalarType weight = at::kBFloat16, stored = at::kBFloat16;
};

class RowSearchTest : public ::testing::TestWithParam<RowSearchCase> {};

TEST_P(RowSearchTest, ChoosesWhatThePlainSearchChooses) {
  at::manual_seed(21);
  const RowSearchCase& c = GetParam();
  const at::Tensor weight = (at::randn({40, 200}) * at::rand({40, 1})).to(c.weight);
  const at::Tensor importance = c.important ? at::rand({200}) + 0.01 : at::Tensor();
  const ScaleGrid grid{1, c.block_columns};
  ScaleSearch search{{}, c.exponent, c.patience};
  for (int i = 0; i < 20; ++i) search.shrink.push_back(1 - 0.02 * i);
  const ChosenScales found =
      search_rows_by(search_on_host, weight, grid, c.rule, search, scales_of_dtype(c.stored), importance);
  const ChosenScales expected =
      plain_search_scales(weight, grid, c.rule, search, scales_of_dtype(c.stored), importance);
  ASSERT_EQ(found.scale.sizes(), expected.scale.sizes());
  EXPECT_TRUE(at::equal(found.scale, found.scale.to(c.stored).to(at::kFloat)));
  // Candidates that lose the same but for rounding.
  EXPECT_GT(found.scale.eq(expected.scale).to(at::kDouble).mean().item<double>(), 0.97);
  ASSERT_EQ(found.zero_point.defined(), expected.zero_point.defined());
  if (found.zero_point.defined()) {
    EXPECT_GT(found.zero_point.eq(expected.zero_point).to(at::kDouble).mean().item<double>(), 0.97);
  }
  const ChosenScales plain =
      search_rows_by(search_on_host, weight, grid, c.rule, {}, scales_of_dtype(c.stored), importance);
  EXPECT_TRUE(at::equal(plain.scale,
                        plain_search_scales(weight, grid, c.rule, {}, scales_of_dtype(c.stored), importance).scale));
  EXPECT_TRUE(plain.scale.ne(found.scale).any().item<bool>());  // the search matters at all
}

INSTANTIATE_TEST_SUITE_P(
    Cases, RowSearchTest,
    ::testing::Values(RowSearchCase{"group", 64, {{}, true}, 2, 0, true},
                      RowSearchCase{"signed_scale", 64, {{}, true, true}, 2, 0, true},
                      RowSearchCase{"short_last_group", 48, {{}, true}, 2, 0, true},
                      RowSearchCase{"patience", 40, {{}, true}, 2.4, 3, false},
                      RowSearchCase{"asymmetric", 100, {{}, false}, 2, 0, true},
                      RowSearchCase{"channel", 200, {{}, true}, 2.4, 0, false},
                      RowSearchCase{"narrow", 8, {{}, false}, 2, 0, false},
                      RowSearchCase{"eight_bits", 200, {integers(8), true}, 2, 0, true, at::kFloat, at::kHalf},
                      RowSearchCase{"fp8", 200, {kE4m3, true}, 2, 0, true, at::kFloat, at::kFloat}),
    [](const auto& info) { return info.param.name; });

TEST(RowSearch, WidensRangesAsThePlainSearchDoes) {
  at::manual_seed(22);
  const at::Tensor weight = at::randn({30, 96}).to(at::kBFloat16);
  const ScaleFormat stored = scales_of_dtype(at::kBFloat16);
  const ScaleSearch search{.shrink = {0.9}, .expand = 1.3};
  const ChosenScales found = search_rows_by(search_on_host, weight, {1, 32}, {{}, false}, search, stored, {});
  const ChosenScales expected = plain_search_scales(weight, {1, 32}, {{}, false}, search, stored, {});
  EXPECT_TRUE(at::equal(found.scale, expected.scale));
  EXPECT_TRUE(at::equal(found.zero_point, expected.zero_point));
  const ChosenScales plain = search_rows_by(search_on_host, weight, {1, 32}, {{}, false}, {{0.9}}, stored, {});
  EXPECT_TRUE(plain.scale.lt(found.scale).all().item<bool>());
}

TEST(RowSearch, ZeroBlocksGetTheSmallestScale) {
  const at::Tensor weight = at::zeros({3, 64});
  for (const bool symmetric : {true, false})
    for (const at::ScalarType stored : {at::kBFloat16, at::kHalf, at::kFloat}) {
      const ScaleSearch search{.shrink = {1.0, 0.8}};
      const ChosenScales chosen =
          search_rows_by(search_on_host, weight, {1, 32}, {{}, symmetric}, search, scales_of_dtype(stored), {});
      EXPECT_TRUE(chosen.scale.eq(smallest_scale(scales_of_dtype(stored))).all().item<bool>());
    }
}

TEST(RowSearch, RoundsAsScalesAreStored) {
  const at::Tensor x = at::cat({at::randn({3000}), at::randn({3000}) * 1e-5, at::randn({1000}) * 3e4,
                                at::tensor({0.0f, 65504.0f, 65519.9f, 65520.0f, 6e-8f, 2.9e-8f, 3.1e-8f})})
                           .abs();
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf, at::kFloat}) {
    const at::Tensor expected = x.to(dtype).to(at::kFloat);
    for (std::int64_t i = 0; i < x.numel(); ++i)
      ASSERT_EQ(rounded_to(scales_of_dtype(dtype).type, x[i].item<float>()), expected[i].item<float>())
          << x[i].item<float>();
  }
}

}  // namespace
}  // namespace layerpress::kernels
