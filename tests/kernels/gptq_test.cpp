#include "layerpress/kernels/solver/gptq.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "layerpress/kernels/numbers/scale_rounding.h"
#include "layerpress/kernels/products/gram.h"
#include "tests/kernels/gptq_problems.h"
#include "tests/kernels/plain_gptq.h"

namespace layerpress::kernels {
namespace {

at::Tensor dequantized(const at::Tensor& codes, const ColumnScales& scales, bool fp8) {
  const at::Tensor level = fp8 ? codes.view(at::kFloat8_e4m3fn).to(at::kFloat) : codes.to(at::kFloat);
  const at::Tensor scale = scales.scale.repeat_interleave(scales.columns_per_group, 1);
  const at::Tensor zero =
      scales.zero_point.defined() ? scales.zero_point.repeat_interleave(scales.columns_per_group, 1) : at::Tensor();
  return level_value(level, scale, zero);
}

double output_error(const Problem& problem, const at::Tensor& codes, bool fp8 = false) {
  const at::Tensor error = (problem.weight - dequantized(codes, problem.scales, fp8)).to(at::kDouble);
  return (error.mm(symmetric_from_upper(problem.gram).to(at::kDouble)) * error).sum().item<double>();
}

/// The codes of one weight.
GptqResult solve(const Problem& problem, const HessianFactor& factor, const ElementType& element = {},
                 std::int64_t block_size = 128) {
  return gptq({{problem.weight, problem.scales}}, factor, element, block_size);
}

class GptqCaseTest : public ::testing::TestWithParam<GptqCase> {};

TEST_P(GptqCaseTest, AgreesWithTheTextbookInDoublePrecision) {
  const GptqCase& c = GetParam();
  const ElementType element = c.fp8 ? kE4m3 : integers(4);
  const Problem problem = make_problem(c.rows, c.columns, c.group, c.symmetric, c.fp8 ? 448 : 7.5);
  const FactorizeOptions options{.dampening = 0.01, .activation_order = c.ordered};
  const auto factor = factorize(problem.gram, options);
  ASSERT_TRUE(factor.has_value());
  const GptqResult result = solve(problem, *factor, element);
  const GptqResult reference = plain_gptq(problem.weight, problem.gram, options, problem.scales, element);
  // A tie decided differently moves the rest of its row, so a few codes may differ; the loss may not.
  EXPECT_GT(equal_share(result.codes[0], reference.codes[0]), 0.995);
  EXPECT_NEAR(result.loss / reference.loss, 1.0, 1e-3);

  const at::Tensor scale = problem.scales.scale.repeat_interleave(c.group, 1);
  const at::Tensor zero = c.symmetric ? at::Tensor() : problem.scales.zero_point.repeat_interleave(c.group, 1);
  const at::Tensor nearest = level_codes(nearest_level(problem.weight, scale, zero, element), element);
  EXPECT_LT(output_error(problem, result.codes[0], c.fp8), 0.8 * output_error(problem, nearest, c.fp8));
}

INSTANTIATE_TEST_SUITE_P(Cases, GptqCaseTest, ::testing::ValuesIn(kGptqCases),
                         [](const auto& info) { return info.param.name; });

/// Pruned weights: a third are 0.
Problem make_pruned_problem(const GptqCase& c) {
  Problem problem = make_problem(c.rows, c.columns, c.group, c.symmetric, c.fp8 ? 448 : 7.5);
  problem.weight.masked_fill_(at::rand(problem.weight.sizes()).lt(0.33), 0);
  return problem;
}

TEST_P(GptqCaseTest, ZerosStayZeros) {
  const GptqCase& c = GetParam();
  const ElementType element = c.fp8 ? kE4m3 : integers(4);
  const Problem problem = make_pruned_problem(c);
  const FactorizeOptions options{.dampening = 0.01, .activation_order = c.ordered};
  const HessianFactor factor = factorize(problem.gram, options).value();
  const std::vector<GptqWeight> weights = {{problem.weight, problem.scales, /*keeps_zeros=*/true}};
  const GptqResult reference =
      plain_gptq(problem.weight, problem.gram, options, problem.scales, element, {}, /*keeps_zeros=*/true);
  const GptqResult result = gptq(weights, factor, element);
  const at::Tensor value = dequantized(result.codes[0], problem.scales, c.fp8);
  EXPECT_TRUE(value.masked_select(problem.weight.eq(0)).eq(0).all().item<bool>());
  EXPECT_GT(equal_share(result.codes[0], reference.codes[0]), 0.995);
  EXPECT_NEAR(result.loss / reference.loss, 1.0, 1e-3);
  // Without the mask, the feedback fills places; with it, later columns answer, which is better than to clear them afterwards.
  const at::Tensor free = dequantized(solve(problem, factor, element).codes[0], problem.scales, c.fp8);
  EXPECT_FALSE(free.masked_select(problem.weight.eq(0)).eq(0).all().item<bool>());
}

TEST(Gptq, ZerosStayZerosWhileScalesAreSearched) {
  for (const bool symmetric : {true, false}) {
    SearchProblem made = make_search_problem(37, 128, 32, symmetric, true);
    made.problem.weight.masked_fill_(at::rand({37, 128}).lt(0.5), 0);
    ColumnScales plain = made.problem.scales;
    plain.scale = plain.scale.clone();
    if (!symmetric) plain.zero_point = plain.zero_point.clone();
    const HessianFactor factor = factorize(made.problem.gram, made.options).value();
    const GptqResult result =
        gptq({{made.problem.weight, made.problem.scales, true}}, factor, made.search.rule.element, 128, made.search);
    const GptqResult reference = plain_gptq(made.problem.weight, made.problem.gram, made.options, plain,
                                            made.search.rule.element, made.search, true);
    const at::Tensor value = dequantized(result.codes[0], made.problem.scales, false);
    EXPECT_TRUE(value.masked_select(made.problem.weight.eq(0)).eq(0).all().item<bool>());
    // As GptqSearch.AgreesWithTheTextbookInDoublePrecision.
    EXPECT_NEAR(result.loss / reference.loss, 1.0, 0.06);
    const at::Tensor first = column_order(made.problem.gram.diagonal(), made.options).slice(0, 0, 32);
    EXPECT_GT(equal_share(result.codes[0].index_select(1, first), reference.codes[0].index_select(1, first)), 0.98);
  }
}

TEST(Gptq, BlockSizeDoesNotMatter) {
  const Problem problem = make_problem(40, 256, 64, true, 7.5);
  const auto factor = factorize(problem.gram, {});
  const at::Tensor whole = solve(problem, *factor).codes[0];
  for (const std::int64_t block : {1, 17, 64})
    EXPECT_TRUE(at::equal(solve(problem, *factor, {}, block).codes[0], whole)) << block;
}

TEST(Gptq, ThreadsDoNotMatter) {
  const int threads = at::get_num_threads();
  for (const std::int64_t columns : {256, 1280}) {
    const Problem problem = make_problem(200, columns, 64, false, 7.5);
    const auto factor = factorize(problem.gram, {});
    at::set_num_threads(1);
    const GptqResult alone = solve(problem, *factor);
    at::set_num_threads(3);
    const GptqResult shared = solve(problem, *factor);
    at::set_num_threads(threads);
    EXPECT_TRUE(at::equal(shared.codes[0], alone.codes[0])) << columns;
    EXPECT_EQ(shared.loss, alone.loss) << columns;
  }
}

/// The weight's rows [first, last) with their scales.
GptqWeight rows_of(const Problem& problem, std::int64_t first, std::int64_t last) {
  ColumnScales scales = problem.scales;
  scales.scale = scales.scale.slice(0, first, last);
  if (scales.zero_point.defined()) scales.zero_point = scales.zero_point.slice(0, first, last);
  return {problem.weight.slice(0, first, last), scales};
}

TEST(Gptq, WeightsOfOneInputAreOneStackOfRows) {
  for (const bool symmetric : {true, false}) {
    const Problem problem = make_problem(50, 128, 64, symmetric, 7.5);
    const auto factor = factorize(problem.gram, {});
    const GptqResult whole = solve(problem, *factor);
    const GptqResult parts =
        gptq({rows_of(problem, 0, 7), rows_of(problem, 7, 37), rows_of(problem, 37, 50)}, *factor, {});
    ASSERT_EQ(parts.codes.size(), 3u);
    EXPECT_TRUE(at::equal(at::cat(parts.codes), whole.codes[0]));
    EXPECT_NEAR(parts.loss / whole.loss, 1.0, 1e-5);
  }
}

TEST(Gptq, RowsDoNotDependOnEachOther) {
  // Of so many columns, tiles of rows are solved together.
  constexpr std::int64_t kRows = 700, kColumns = 1344, kLast = 80;
  Problem problem = make_problem(kRows, kColumns, 64, true, 7.5);
  problem.weight = problem.weight.to(at::kBFloat16);
  const auto factor = factorize(problem.gram, {});
  const at::Tensor whole = solve(problem, *factor).codes[0];
  const at::Tensor alone = gptq({rows_of(problem, kRows - kLast, kRows)}, *factor, {}).codes[0];
  EXPECT_TRUE(at::equal(alone, whole.slice(0, kRows - kLast)));
}

TEST(Gptq, RowsMayShareScales) {
  Problem problem = make_problem(40, 128, 64, true, 7.5);
  const auto factor = factorize(problem.gram, {});
  const at::Tensor blocks = problem.scales.scale.slice(0, 0, 40, 16).contiguous();
  problem.scales.scale = blocks.repeat_interleave(16, 0).slice(0, 0, 40).contiguous();
  const at::Tensor per_row = solve(problem, *factor).codes[0];
  problem.scales.scale = blocks;
  problem.scales.rows_per_group = 16;
  EXPECT_TRUE(at::equal(solve(problem, *factor).codes[0], per_row));
  const GptqResult reference = plain_gptq(problem.weight, problem.gram, {}, problem.scales, {});
  EXPECT_GT(equal_share(per_row, reference.codes[0]), 0.995);
}

TEST(Gptq, UntouchedColumnsAreRoundedToNearest) {
  Problem problem = make_problem(24, 128, 64, true, 7.5);
  for (const std::int64_t dead : {3, 77}) {
    problem.gram.select(0, dead).zero_();
    problem.gram.select(1, dead).zero_();
  }
  const auto factor = factorize(problem.gram, {});
  ASSERT_TRUE(factor.has_value());
  const GptqResult result = solve(problem, *factor);
  const at::Tensor scale = problem.scales.scale.repeat_interleave(64, 1);
  const at::Tensor nearest = level_codes(nearest_level(problem.weight, scale, {}, {}), {});
  for (const std::int64_t dead : {3, 77})
    EXPECT_TRUE(at::equal(result.codes[0].select(1, dead), nearest.select(1, dead))) << dead;
}

TEST(Gptq, IndependentInputsReduceToRoundToNearest) {
  Problem problem = make_problem(16, 64, 32, true, 7.5);
  problem.gram = at::eye(64) * 3;
  const GptqResult result = solve(problem, *factorize(problem.gram, {}));
  const at::Tensor scale = problem.scales.scale.repeat_interleave(32, 1);
  EXPECT_TRUE(at::equal(result.codes[0], level_codes(nearest_level(problem.weight, scale, {}, {}), {})));
}

TEST(GptqSearch, AgreesWithTheTextbookInDoublePrecision) {
  for (const bool symmetric : {true, false})
    for (const bool ordered : {true, false})
      for (const auto& [columns, group] : {std::pair{192, 32}, {256, 128}, {1152, 64}}) {
        SearchProblem made = make_search_problem(37, columns, group, symmetric, ordered);
        const GptqResult result = made.solve();
        ColumnScales expected = made.problem.scales;
        expected.scale = at::empty_like(expected.scale);
        if (!symmetric) expected.zero_point = at::empty_like(expected.scale);
        const GptqResult reference = plain_gptq(made.problem.weight, made.problem.gram, made.options, expected,
                                                made.search.rule.element, made.search);
        // Two candidates that are as good, decided differently, change the rest of their row; not so the first group.
        EXPECT_NEAR(result.loss / reference.loss, 1.0, 0.06) << columns << symmetric << ordered;
        const at::Tensor first = column_order(made.problem.gram.diagonal(), made.options).slice(0, 0, group);
        const std::int64_t own = first[0].item<std::int64_t>() / group;
        const auto of_group = [&](const at::Tensor& codes) { return codes.index_select(1, first); };
        EXPECT_GT(equal_share(of_group(result.codes[0]), of_group(reference.codes[0])), 0.98) << columns << symmetric;
        const at::Tensor ratio = made.problem.scales.scale.select(1, own) / expected.scale.select(1, own);
        EXPECT_GT((ratio - 1).abs().lt(1e-4).to(at::kDouble).mean().item<double>(), 0.95) << columns << symmetric;
      }
}

TEST(GptqSearch, LeavesLessLossThanScalesThatWereChosenBefore) {
  for (const bool symmetric : {true, false}) {
    SearchProblem made = make_search_problem(64, 256, 32, symmetric, true);
    const double searched = made.solve().loss;
    const auto factor = factorize(made.problem.gram, made.options);
    for (const double shrink : kSearch.shrink) {
      const ChosenScales before =
          search_scales(made.problem.weight, {1, 32}, made.search.rule, {.shrink = {shrink}}, {ScaleType::kFloat}, {});
      Problem fixed = made.problem;
      fixed.scales.scale = before.scale;
      fixed.scales.zero_point = before.zero_point;
      EXPECT_LT(searched, 0.98 * solve(fixed, *factor).loss) << shrink;
    }
  }
}

TEST(GptqSearch, OneCandidateIsTheRangeOfTheWeightsAtTheGroupsTurn) {
  SearchProblem made = make_search_problem(16, 32, 32, true, false);
  made.search.shrink = {1.0};
  made.search.stored = {ScaleType::kBf16};
  const GptqResult result = made.solve();
  const ChosenScales range = search_scales(made.problem.weight, {1, 32}, made.search.rule, {}, {ScaleType::kBf16}, {});
  EXPECT_TRUE(at::equal(made.problem.scales.scale, range.scale));
  Problem fixed = made.problem;
  fixed.scales.scale = range.scale;
  EXPECT_TRUE(at::equal(result.codes[0], solve(fixed, *factorize(made.problem.gram, made.options)).codes[0]));
}

TEST(GptqSearch, NeitherRowsNorThreadsNorBlockSizeMatter) {
  const int threads = at::get_num_threads();
  for (const std::int64_t columns : {256, 1280}) {
    SearchProblem whole = make_search_problem(150, columns, 64, true, true);
    const auto factor = factorize(whole.problem.gram, whole.options);
    at::set_num_threads(1);
    const GptqResult alone = whole.solve(*factor);
    const at::Tensor scales = whole.problem.scales.scale.clone();
    at::set_num_threads(3);
    EXPECT_TRUE(at::equal(whole.solve(*factor).codes[0], alone.codes[0])) << columns;
    EXPECT_TRUE(at::equal(whole.problem.scales.scale, scales)) << columns;
    at::set_num_threads(threads);

    SearchProblem part = whole;
    part.problem.weight = whole.problem.weight.slice(0, 83).contiguous();
    part.problem.scales.scale = at::empty({67, columns / 64});
    const GptqResult rows =
        gptq({{part.problem.weight, part.problem.scales}}, *factor, part.search.rule.element, 16, part.search);
    EXPECT_TRUE(at::equal(rows.codes[0], alone.codes[0].slice(0, 83))) << columns;
    EXPECT_TRUE(at::equal(part.problem.scales.scale, scales.slice(0, 83))) << columns;
  }
}

TEST(GptqSearch, RowsOfZerosGetTheSmallestScale) {
  SearchProblem made = make_search_problem(8, 64, 32, true, true);
  made.search.stored = {ScaleType::kBf16};
  made.problem.weight[3].zero_();
  const GptqResult result = made.solve();
  EXPECT_TRUE(result.codes[0][3].eq(0).all().item<bool>());
  EXPECT_TRUE(made.problem.scales.scale[3].eq(smallest_scale({ScaleType::kBf16})).all().item<bool>());
}

TEST(GptqSearch, AShortGroupAtTheEndIsAGroup) {
  const SearchProblem made = make_search_problem(33, 80, 32, true, true);  // 32, 32, 16
  const at::Tensor codes = made.solve().codes[0];
  at::Tensor spread = made.problem.scales.scale.repeat_interleave(32, 1).slice(1, 0, 80);
  const auto error = [&](const at::Tensor& values) {
    const at::Tensor left = (made.problem.weight - values).to(at::kDouble);
    return (left.mm(symmetric_from_upper(made.problem.gram).to(at::kDouble)) * left).sum().item<double>();
  };
  EXPECT_LT(error(codes * spread), 0.02 * error(at::zeros_like(codes)));
}

}  // namespace
}  // namespace layerpress::kernels
