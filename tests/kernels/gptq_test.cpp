#include "layerpress/kernels/gptq.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "layerpress/kernels/gram.h"

namespace layerpress::kernels {
namespace {

/// A weight and a Gram matrix of correlated inputs, with scales per group.
struct Problem {
  at::Tensor weight, gram;
  ColumnScales scales;
};

Problem make_problem(std::int64_t rows, std::int64_t columns, std::int64_t group, bool symmetric, double largest) {
  at::manual_seed(7);
  Problem problem;
  problem.weight = at::randn({rows, columns});
  const at::Tensor x = at::randn({4 * columns, columns}).mm(at::eye(columns) + 0.3 * at::randn({columns, columns}));
  problem.gram = at::zeros({columns, columns});
  accumulate_gram(problem.gram, x);
  const at::Tensor groups = problem.weight.view({rows, -1, group});
  if (symmetric) {
    problem.scales.scale = groups.abs().amax(-1) / largest;
  } else {
    const at::Tensor low = groups.amin(-1), high = groups.amax(-1);
    problem.scales.scale = (high - low) / (2 * largest);
    problem.scales.zero_point = (-largest - 0.5 - low / problem.scales.scale).round().clamp(-8, 7);
  }
  problem.scales.columns_per_group = group;
  return problem;
}

double equal_share(const at::Tensor& a, const at::Tensor& b) { return a.eq(b).to(at::kDouble).mean().item<double>(); }

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

struct Case {
  const char* name;
  std::int64_t rows, columns, group;
  bool symmetric, ordered, fp8;
};

class GptqCaseTest : public ::testing::TestWithParam<Case> {};

TEST_P(GptqCaseTest, AgreesWithTheTextbookInDoublePrecision) {
  const Case& c = GetParam();
  const Codebook codebook{c.fp8, -8, 7};
  const Problem problem = make_problem(c.rows, c.columns, c.group, c.symmetric, c.fp8 ? 448 : 7.5);
  const FactorizeOptions options{.dampening = 0.01, .activation_order = c.ordered};
  const auto factor = factorize(problem.gram, options);
  ASSERT_TRUE(factor.has_value());
  const GptqResult result = gptq(problem.weight, *factor, problem.scales, codebook);
  const GptqResult reference = gptq_reference(problem.weight, problem.gram, options, problem.scales, codebook);
  // A tie decided differently moves the rest of its row, so a few codes may differ; the loss may not.
  EXPECT_GT(equal_share(result.codes, reference.codes), 0.995);
  EXPECT_NEAR(result.loss / reference.loss, 1.0, 1e-3);

  const at::Tensor scale = problem.scales.scale.repeat_interleave(c.group, 1);
  const at::Tensor zero = c.symmetric ? at::Tensor() : problem.scales.zero_point.repeat_interleave(c.group, 1);
  const at::Tensor nearest = level_codes(nearest_level(problem.weight, scale, zero, codebook), codebook);
  EXPECT_LT(output_error(problem, result.codes, c.fp8), 0.8 * output_error(problem, nearest, c.fp8));
}

INSTANTIATE_TEST_SUITE_P(Cases, GptqCaseTest,
                         ::testing::Values(Case{"group", 40, 192, 32, true, true, false},
                                           Case{"unordered", 33, 160, 32, true, false, false},
                                           Case{"asymmetric", 48, 128, 64, false, true, false},
                                           Case{"channel", 17, 130, 130, true, true, false},
                                           Case{"fp8", 32, 96, 96, true, true, true}),
                         [](const auto& info) { return info.param.name; });

TEST(Gptq, BlockSizeDoesNotMatter) {
  const Problem problem = make_problem(40, 256, 64, true, 7.5);
  const auto factor = factorize(problem.gram, {});
  const GptqResult whole = gptq(problem.weight, *factor, problem.scales, {}, 128);
  for (const std::int64_t block : {1, 17, 64})
    EXPECT_GT(equal_share(gptq(problem.weight, *factor, problem.scales, {}, block).codes, whole.codes), 0.995) << block;
}

TEST(Gptq, RowsAreIndependent) {
  const Problem problem = make_problem(50, 128, 64, true, 7.5);
  const auto factor = factorize(problem.gram, {});
  const GptqResult whole = gptq(problem.weight, *factor, problem.scales, {});
  ColumnScales part = problem.scales;
  part.scale = problem.scales.scale.slice(0, 20, 37);
  const GptqResult rows = gptq(problem.weight.slice(0, 20, 37), *factor, part, {});
  EXPECT_GT(equal_share(rows.codes, whole.codes.slice(0, 20, 37)), 0.995);
}

TEST(Gptq, UntouchedColumnsAreRoundedToNearest) {
  Problem problem = make_problem(24, 128, 64, true, 7.5);
  for (const std::int64_t dead : {3, 77}) {
    problem.gram.select(0, dead).zero_();
    problem.gram.select(1, dead).zero_();
  }
  const auto factor = factorize(problem.gram, {});
  ASSERT_TRUE(factor.has_value());
  const GptqResult result = gptq(problem.weight, *factor, problem.scales, {});
  const at::Tensor scale = problem.scales.scale.repeat_interleave(64, 1);
  const at::Tensor nearest = level_codes(nearest_level(problem.weight, scale, {}, {}), {});
  for (const std::int64_t dead : {3, 77})
    EXPECT_TRUE(at::equal(result.codes.select(1, dead), nearest.select(1, dead))) << dead;
}

TEST(Gptq, IndependentInputsReduceToRoundToNearest) {
  Problem problem = make_problem(16, 64, 32, true, 7.5);
  problem.gram = at::eye(64) * 3;
  const GptqResult result = gptq(problem.weight, *factorize(problem.gram, {}), problem.scales, {});
  const at::Tensor scale = problem.scales.scale.repeat_interleave(32, 1);
  EXPECT_TRUE(at::equal(result.codes, level_codes(nearest_level(problem.weight, scale, {}, {}), {})));
}

TEST(Factorize, RefusesWhatIsNotPositiveDefinite) {
  at::Tensor gram = at::eye(8);
  gram[2][5] = 4;  // an impossible correlation
  EXPECT_FALSE(factorize(gram, {.dampening = 0.01}).has_value());
  EXPECT_TRUE(factorize(gram, {.dampening = 100}).has_value());
}

TEST(Factorize, DoublePrecisionSurvivesWhatSinglePrecisionDoesNot) {
  at::manual_seed(5);
  const at::Tensor few = at::randn({6, 64});
  at::Tensor gram = at::zeros({64, 64});
  accumulate_gram(gram, few);  // rank 6: only the dampening makes it definite
  EXPECT_FALSE(factorize(gram, {.dampening = 1e-9}).has_value());
  EXPECT_TRUE(factorize(gram, {.dampening = 1e-5, .double_precision = true}).has_value());
}

}  // namespace
}  // namespace layerpress::kernels
