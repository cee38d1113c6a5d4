#include "layerpress/kernels/solver/block_solver.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <vector>

#include "layerpress/kernels/solver/factorize_together.h"
#include "tests/kernels/gptq_problems.h"
#include "tests/kernels/host_solver.h"
#include "tests/kernels/plain_gptq.h"

// The lines that a device runs, on the host.
namespace layerpress::kernels {
namespace {

GptqResult solve(const std::vector<GptqWeight>& weights, const HessianFactor& factor, const ElementType& element = {},
                 std::int64_t block_size = 128) {
  return gptq_by_blocks(weights, factor, element, block_size, {}, test::solve_on_host);
}

class BlockSolverTest : public ::testing::TestWithParam<GptqCase> {};

TEST_P(BlockSolverTest, AgreesWithTheTextbookAndTheCpu) {
  const GptqCase& c = GetParam();
  const ElementType element = c.fp8 ? kE4m3 : integers(4);
  const Problem problem = make_problem(c.rows, c.columns, c.group, c.symmetric, c.fp8 ? 448 : 7.5);
  const FactorizeOptions options{.dampening = 0.01, .activation_order = c.ordered};
  const auto factor = factorize(problem.gram, options);
  ASSERT_TRUE(factor.has_value());
  const GptqResult result = solve({{problem.weight, problem.scales}}, *factor, element);
  const GptqResult reference = plain_gptq(problem.weight, problem.gram, options, problem.scales, element);
  const GptqResult on_cpu = gptq({{problem.weight, problem.scales}}, *factor, element);
  // A tie decided differently moves the rest of its row.
  EXPECT_GT(equal_share(result.codes[0], reference.codes[0]), 0.995);
  EXPECT_GT(equal_share(result.codes[0], on_cpu.codes[0]), 0.995);
  EXPECT_NEAR(result.loss / reference.loss, 1.0, 1e-3);
}

INSTANTIATE_TEST_SUITE_P(Cases, BlockSolverTest, ::testing::ValuesIn(kGptqCases),
                         [](const auto& info) { return info.param.name; });

TEST(BlockSolver, ZerosStayZeros) {
  for (const bool symmetric : {true, false}) {
    Problem problem = make_problem(40, 256, 64, symmetric, 7.5);
    problem.weight.masked_fill_(at::rand({40, 256}).lt(0.5), 0);
    const auto factor = factorize(problem.gram, {});
    const std::vector<GptqWeight> weights = {{problem.weight, problem.scales, /*keeps_zeros=*/true}};
    const GptqResult result = solve(weights, *factor), on_cpu = gptq(weights, *factor, {});
    EXPECT_GT(equal_share(result.codes[0], on_cpu.codes[0]), 0.995);
    const at::Tensor zero = symmetric ? at::zeros({40, 256}) : problem.scales.zero_point.repeat_interleave(64, 1);
    EXPECT_TRUE(result.codes[0].eq(zero).masked_select(problem.weight.eq(0)).all().item<bool>());
  }
}

TEST(BlockSolver, BlockSizeDoesNotMatter) {
  const Problem problem = make_problem(40, 256, 64, true, 7.5);
  const auto factor = factorize(problem.gram, {});
  const at::Tensor whole = solve({{problem.weight, problem.scales}}, *factor).codes[0];
  for (const std::int64_t block : {1, 17, 33, 64})
    EXPECT_GT(equal_share(solve({{problem.weight, problem.scales}}, *factor, {}, block).codes[0], whole), 0.995)
        << block;
}

TEST(BlockSolver, WeightsOfOneInputAreOneStackOfRows) {
  const Problem problem = make_problem(50, 128, 64, false, 7.5);
  const auto factor = factorize(problem.gram, {});
  const auto rows = [&](std::int64_t first, std::int64_t last) {
    ColumnScales scales = problem.scales;
    scales.scale = scales.scale.slice(0, first, last);
    scales.zero_point = scales.zero_point.slice(0, first, last);
    return GptqWeight{problem.weight.slice(0, first, last), scales};
  };
  const GptqResult whole = solve({{problem.weight, problem.scales}}, *factor);
  const GptqResult parts = solve({rows(0, 7), rows(7, 37), rows(37, 50)}, *factor);
  ASSERT_EQ(parts.codes.size(), 3u);
  EXPECT_TRUE(at::equal(at::cat(parts.codes), whole.codes[0]));
  EXPECT_NEAR(parts.loss / whole.loss, 1.0, 1e-6);
}

TEST(BlockSolver, BlocksOfRowsShareAScale) {
  Problem problem = make_problem(37, 128, 64, true, 7.5);
  problem.scales.scale =
      at::cat({problem.scales.scale.slice(0, 0, 16).amax(0, true), problem.scales.scale.slice(0, 16, 32).amax(0, true),
               problem.scales.scale.slice(0, 32).amax(0, true)});
  problem.scales.rows_per_group = 16;
  const auto factor = factorize(problem.gram, {});
  // The last block of rows is short, and the next weight's rows begin with their own.
  const std::vector<GptqWeight> weights{{problem.weight, problem.scales}, {problem.weight.flip(0), problem.scales}};
  const GptqResult result = solve(weights, *factor), on_cpu = gptq(weights, *factor, {});
  for (const std::size_t i : {0, 1}) EXPECT_GT(equal_share(result.codes[i], on_cpu.codes[i]), 0.995) << i;
}

TEST(BlockSolver, WeightsWithOneScaleEachKeepTheirs) {
  const Problem problem = make_problem(48, 128, 128, true, 7.5);
  const auto factor = factorize(problem.gram, {});
  std::vector<GptqWeight> weights;
  for (const auto& [first, last] : {std::pair{0, 24}, {24, 32}, {32, 48}}) {
    ColumnScales scales = problem.scales;
    scales.scale = problem.scales.scale.slice(0, first, last).amax(0, true) * (1 + first);
    scales.rows_per_group = last - first;
    weights.push_back({problem.weight.slice(0, first, last) * (1 + first), scales});
  }
  const GptqResult result = solve(weights, *factor), on_cpu = gptq(weights, *factor, {});
  for (const std::size_t i : {0, 1, 2}) EXPECT_GT(equal_share(result.codes[i], on_cpu.codes[i]), 0.995) << i;
}

TEST(BlockSolver, ChoosesTheScalesThatTheCpuChooses) {
  for (const bool symmetric : {true, false})
    for (const auto& [columns, group] : {std::pair{192, 32}, {256, 128}, {80, 32}}) {
      SearchProblem made = make_search_problem(37, columns, group, symmetric, true);
      ColumnScales own = made.problem.scales;
      own.scale = own.scale.clone();
      if (!symmetric) own.zero_point = own.zero_point.clone();
      const auto factor = factorize(made.problem.gram, made.options);
      const GptqResult on_cpu = made.solve(*factor);
      const GptqResult result = gptq_by_blocks({{made.problem.weight, own}}, *factor, made.search.rule.element, 128,
                                               made.search, test::solve_on_host);
      EXPECT_NEAR(result.loss / on_cpu.loss, 1.0, 1e-3) << columns << symmetric;
      EXPECT_GT(equal_share(result.codes[0], on_cpu.codes[0]), 0.99) << columns << symmetric;
      const at::Tensor ratio = own.scale / made.problem.scales.scale;
      EXPECT_GT((ratio - 1).abs().lt(1e-4).to(at::kDouble).mean().item<double>(), 0.97) << columns << symmetric;
    }
}

/// A problem beside others: its own inputs, and weights whose columns go another way.
struct Neighbour {
  SearchProblem made;
  std::vector<GptqWeight> weights;

  Neighbour(std::int64_t number, std::int64_t columns, bool symmetric, bool searched)
      : made(make_search_problem(40, columns, 32, symmetric, true)) {
    at::manual_seed(static_cast<std::uint64_t>(number));
    const at::Tensor sizes = at::rand({columns}) * 2 + 0.3;
    made.problem.gram = made.problem.gram * sizes.outer(sizes);
    made.problem.weight = made.problem.weight * (at::rand({40, 1}) + 0.5);
    const at::Tensor groups = made.problem.weight.view({40, -1, 32});
    ColumnScales& scales = made.problem.scales;
    scales.scale = groups.abs().amax(-1) / (symmetric ? 7.5 : 6.0);
    if (!symmetric) scales.zero_point = at::randint(-3, 3, scales.scale.sizes()).to(at::kFloat);
    if (!searched) made.options.group_columns = 0;
    for (const auto& [first, last] : {std::pair{0, 17}, {17, 40}}) {
      ColumnScales own = scales;
      own.scale = scales.scale.slice(0, first, last).clone();
      if (!symmetric) own.zero_point = scales.zero_point.slice(0, first, last).clone();
      weights.push_back({made.problem.weight.slice(0, first, last), own});
    }
  }
};

TEST(BlockSolver, ProblemsTogetherAreEachAsAlone) {
  for (const bool symmetric : {true, false})
    for (const bool searched : {true, false}) {
      std::vector<Neighbour> neighbours;
      std::vector<std::vector<GptqWeight>> problems;
      std::vector<at::Tensor> grams;
      for (std::int64_t p = 0; p < 5; ++p) {
        neighbours.emplace_back(p, 160, symmetric, searched);
        problems.push_back(neighbours.back().weights);
        grams.push_back(neighbours.back().made.problem.gram);
      }
      const SearchProblem& first = neighbours.front().made;
      const std::optional<GroupSearch> search = searched ? std::optional(first.search) : std::nullopt;
      const HessianFactors together = factorize_together(grams, first.options);
      const auto results =
          gptq_together(problems, together.factors, first.search.rule.element, 100, search, test::solve_on_host);
      ASSERT_EQ(results.size(), 5u);
      for (std::size_t p = 0; p < 5; ++p) {
        ASSERT_TRUE(together.definite[p]);
        std::vector<GptqWeight> alone = Neighbour(static_cast<std::int64_t>(p), 160, symmetric, searched).weights;
        const auto factor = factorize(grams[p], first.options);
        EXPECT_TRUE(at::equal(factor->order, together.factors.order[static_cast<std::int64_t>(p)]));
        const GptqResult expected = gptq(alone, *factor, first.search.rule.element, 128, search);
        EXPECT_NEAR(results[p].loss / expected.loss, 1.0, 2e-3) << p;
        ASSERT_EQ(results[p].codes.size(), 2u);
        for (const std::size_t w : {0, 1}) {
          EXPECT_GT(equal_share(results[p].codes[w], expected.codes[w]), 0.99) << p << w << symmetric << searched;
          const at::Tensor scale = problems[p][w].scales.scale / alone[w].scales.scale;
          EXPECT_GT((scale - 1).abs().lt(1e-4).to(at::kDouble).mean().item<double>(), 0.97) << p << w;
        }
      }
    }
}

TEST(BlockSolver, SaysWhatCanBeSolvedTogether) {
  EXPECT_TRUE(can_solve_together({{48, {16, 128}}, {64, {16, 128}}}, 256, false));
  EXPECT_FALSE(can_solve_together({{48, {16, 128}}, {60, {16, 128}}}, 256, false));  // a block would span two weights
  EXPECT_FALSE(can_solve_together({{48, {48, 256}}, {64, {64, 256}}}, 256, false));  // blocks of other sizes
  EXPECT_TRUE(can_solve_together({{7, {1, 64}}, {9, {1, 64}}}, 200, false));
  EXPECT_FALSE(can_solve_together({{7, {1, 64}}}, 200, true));  // the short group is elsewhere in each order
  EXPECT_EQ(problems_at_once(1536, 2048), 16);
  EXPECT_EQ(problems_at_once(28672, 4096), 1);
}

TEST(BlockSolver, RoundsToFp8AsAtenDoes) {
  const at::Tensor x = at::cat({at::linspace(-500, 500, 4001), at::linspace(-0.05, 0.05, 4001), at::zeros({1})});
  const at::Tensor expected = x.clamp(-448, 448).to(at::kFloat8_e4m3fn);
  const at::Tensor wide = expected.to(at::kFloat), bits = expected.view(at::kChar);
  const FloatLevels<cuda::LaneOperations, 4, 3> levels{kE4m3.minimum, kE4m3.maximum};
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    const float level = levels.level(x[i].item<float>(), 0);
    ASSERT_EQ(level, wide[i].item<float>()) << x[i].item<float>();
    ASSERT_EQ(levels.encode(level), bits[i].item<std::int8_t>()) << x[i].item<float>();
  }
}

}  // namespace
}  // namespace layerpress::kernels
